"""torch 2.13.0, CPU: a copy between two buffers after a fused update of both is lost, in compiled code."""

import sys

import torch


def update_then_copy(target, source):
    torch._foreach_add_([target, source], 1.0)
    target.copy_(source)
    return target


print("expected:", update_then_copy(torch.zeros(3), torch.ones(3)).tolist())
print("found:", found := torch.compile(update_then_copy)(torch.zeros(3), torch.ones(3)).tolist())
sys.exit(found != [2] * 3)
