"""The processes of one host that `torchrun` starts for one evaluation: each takes the GPU of its number."""

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import torch
from torch import distributed

from kgverify.errors import UserError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

_PIECE: Final = 1 << 21
"""The bytes of a message that are sent at once: the store takes no more than four times as many."""

_PATIENCE: Final = timedelta(days=7)
"""The time that a process waits for another; `torchrun` ends the others when one has ended."""


class TorchTeam:
    """A process of the group. The processes communicate through the key-value store by which they found each other.

    index: the number of this process; process 0 leads. size: the number of processes.
    """

    def __init__(self, store: "Store", index: int, size: int) -> None:
        self.index, self.size = index, size
        self._store = store
        self._num_shared = 0

    def broadcast(self, message: bytes) -> bytes:
        """Return the leader's message in every process, in the order of the calls."""
        key = f"kgverify/shared {self._num_shared}"
        self._num_shared += 1
        if self.index == 0:
            self._store.set(key, message.hex())
        return bytes.fromhex(self._store.get(key).decode())

    def add(self, counter: str, num: int) -> int:
        """Add to a counter that all processes share and return its new value."""
        return int(self._store.add(f"kgverify/{counter}", num))

    def send(self, name: str, message: bytes) -> None:
        """Send a message to the leader."""
        key = f"kgverify/message {name}"
        pieces = [message[i : i + _PIECE] for i in range(0, len(message), _PIECE)]
        for i, piece in enumerate(pieces):
            self._store.set(f"{key} {i}", piece.hex())
        self._store.set(key, str(len(pieces)))

    def receive(self, name: str) -> bytes | None:
        """Return the message of a name, if it has arrived."""
        key = f"kgverify/message {name}"
        if not self._store.check([key]):
            return None
        num_pieces = int(self._store.get(key))
        return b"".join(bytes.fromhex(self._store.get(f"{key} {i}").decode()) for i in range(num_pieces))


def join_team() -> TorchTeam | None:
    """Join the group that `torchrun` started this process for; None without `torchrun`, or for a single process.

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
    return TorchTeam(store, index, size)


def _take_gpu(number: int) -> None:
    num_gpus = torch.cuda.device_count()
    if number >= num_gpus:
        raise UserError(
            f"process {number} of this host has no GPU: there are {num_gpus}",
            where="torchrun",
            fix=f"use --nproc-per-node {num_gpus}",
        )
    torch.cuda.set_device(number)
