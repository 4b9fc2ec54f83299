"""torch 2.13.0: a tensor compared with a member of an IntEnum is False everywhere in compiled code."""

import sys
from enum import IntEnum

import torch


class Kind(IntEnum):
    GOAL, TRUE = 0, 1


def mark(kinds):
    return torch.ones_like(kinds, dtype=torch.bool) & (kinds == Kind.TRUE)


kinds = torch.tensor([0, 1, 1])
print("expected:", mark(kinds).tolist(), (kinds.numpy() == 1).tolist())
print("found:", found := torch.compile(mark)(kinds).tolist())
sys.exit(found != [False, True, True])
