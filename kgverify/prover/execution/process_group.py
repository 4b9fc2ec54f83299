"""The processes of one host that `torchrun` starts for one evaluation: each takes the GPU of its number."""

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import torch
from torch import distributed

from kgverify.errors import UserError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_PATIENCE: Final = timedelta(days=7)
"""The time that a process waits for another; `torchrun` ends the others when one has ended."""


def join_team() -> "tuple[Store, int, int] | None":
    """Join the group that `torchrun` started this process for; None without `torchrun`, or for a single process.

    Returns the key-value store by which the processes found each other, the number of this process, and that of all.

    UserError if there are more processes than GPUs, or torch was built without `torch.distributed`.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return None
    if not distributed.is_available():
        raise UserError("this torch cannot run several processes", where="WORLD_SIZE", fix="run one process")
    if torch.cuda.is_available():
        _take_gpu(int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))))
    from torch.distributed.rendezvous import rendezvous

    store, index, size = next(rendezvous("env://"))
    store.set_timeout(_PATIENCE)
    return store, index, size


def _take_gpu(number: int) -> None:
    num_gpus = torch.cuda.device_count()
    if number >= num_gpus:
        raise UserError(
            f"process {number} of this host has no GPU: there are {num_gpus}",
            where="torchrun",
            fix=f"use --nproc-per-node {num_gpus}",
        )
    torch.cuda.set_device(number)
