"""Faults written by hand into the batched prover of `examples/padded_engine`, each a class."""

import torch
from fast import Fast
from prover import PaddedProver


class FactCap(PaddedProver):
    """Facts beyond the second of a predicate are not matched."""

    def match_facts(self, goals, excluded):
        state, fact = super().match_facts(goals, excluded)
        predicate = self.facts[:, 0].contiguous()
        index = torch.arange(len(predicate)) - torch.searchsorted(predicate, predicate)
        return state[index[fact] < 2], fact[index[fact] < 2]


class OverflowIsProof(PaddedProver):
    """A state with more successors than the cap counts as proved."""

    def close(self, num, state, atoms):
        overflows = torch.bincount(state, minlength=num) > self.cap
        atoms = torch.where(overflows[state][:, None, None], 0, atoms)
        return super().close(num, state, atoms)


class StalePadding(PaddedProver):
    """Rows behind the remaining atoms keep their old content."""

    def align(self, atoms):
        aligned = super().align(atoms)
        is_last = torch.arange(atoms.shape[1]) == atoms.shape[1] - 1
        is_stale = is_last & (aligned[:, :, 0] == 0) & (aligned[:, :1, 0] != 0)
        return torch.where(is_stale[:, :, None], aligned[:, :1], aligned)


class VariableCapture(PaddedProver):
    """The next free variable is not handed on."""

    def step(self, states, next_variable, excluded):
        successors, counts, _ = super().step(states, next_variable, excluded)
        return successors, counts, torch.full_like(next_variable, self.first_variable)


FAULTS = (FactCap, OverflowIsProof, StalePadding, VariableCapture)


def plant(fault):
    """Return the fast engine with a fault."""
    return type(f"{fault.__name__}Engine", (Fast,), {"make": fault})
