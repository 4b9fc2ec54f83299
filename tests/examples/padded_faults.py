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


class LastFactLost(PaddedProver):
    """The last fact is not matched."""

    def match_facts(self, goals, excluded):
        state, fact = super().match_facts(goals, excluded)
        is_kept = fact < len(self.facts) - 1
        return state[is_kept], fact[is_kept]


class WrongExcluded(PaddedProver):
    """The query's arguments are swapped where it is to be excluded from the facts matched."""

    def match_facts(self, goals, excluded):
        return super().match_facts(goals, excluded[:, :, [0, 2, 1]])


class StalePadding(PaddedProver):
    """Rows behind the atoms that are left keep their old content."""

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


class CountTooLarge(PaddedProver):
    """The number of successors is one too many."""

    def close(self, num, state, atoms):
        successors, counts = super().close(num, state, atoms)
        return torch.cat((successors, successors.new_zeros(num, 1, *successors.shape[2:])), dim=1), counts + 1


class ReversedBody(PaddedProver):
    """The atoms of a rule's body are in reverse order."""

    def __init__(self, facts, rules, **options):
        super().__init__(facts, [torch.cat((rule[:1], rule[1:].flip(0))) for rule in rules], **options)


class ExcludedPruned(PaddedProver):
    """The query is deleted from successors if it is a fact."""

    def prune(self, atoms, excluded):
        return super().prune(atoms, torch.zeros_like(excluded))


class LastRuleMissing(PaddedProver):
    """The last rule is not used."""

    def match_rules(self, goals):
        state, rule = super().match_rules(goals)
        is_kept = rule < len(self.rules) - 1
        return state[is_kept], rule[is_kept]


class NarrowKeys(PaddedProver):
    """The numbers of atoms have 32 bits, in which the predicate has no room."""

    def key(self, atoms):
        return super().key(atoms).int()


class AtomsBesideTrue(PaddedProver):
    """TRUE is written over the first atom of the first successor, whose other atoms stay."""

    def close(self, num, state, atoms):
        successors, counts = super().close(num, state, atoms)
        is_first = torch.ones(len(state), dtype=torch.bool)
        is_first[1:] = state[1:] != state[:-1]
        first = torch.zeros_like(successors[:, 0])
        first[state[is_first]] = atoms[is_first]
        is_true = successors[:, 0, 0, 0] == self.true
        successors[:, 0, 1:] = torch.where(is_true[:, None, None], first[:, 1:], successors[:, 0, 1:])
        return successors, counts


FAULTS = (
    FactCap,
    OverflowIsProof,
    LastFactLost,
    WrongExcluded,
    StalePadding,
    VariableCapture,
    CountTooLarge,
    ReversedBody,
    ExcludedPruned,
    LastRuleMissing,
    NarrowKeys,
    AtomsBesideTrue,
)


def plant(fault):
    """Return the fast engine with a fault."""
    return type(f"{fault.__name__}Engine", (Fast,), {"make": fault})
