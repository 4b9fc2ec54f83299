"""The digests are those of a slow second reading of their definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_builders import make_columns, make_malformed

from kgverify import Columns
from kgverify.trace.model import digests as module
from kgverify.trace.model.digests import COUNTED, compute_digests, compute_sequence, fold, mix, root_digest, words_of

WORD = (1 << 64) - 1


def slow_mix(x):
    x = (x + 0x9E3779B97F4A7C15) & WORD
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & WORD
    return x ^ x >> 31


def slow_fold(h, *words):
    for w in words:
        h = slow_mix(h ^ slow_mix(int(w) & WORD))
    return h


def slow_goal(kind, atoms):
    return slow_fold(slow_fold(kind, len(atoms)), sum(slow_fold(0, j, *a) for j, a in enumerate(atoms)))


def slow_renumber(atoms):
    numbers = {}
    return [(p, *(x if x >= 0 else -1 - numbers.setdefault(x, len(numbers)) for x in (a, b))) for p, a, b in atoms]


def slow_digests(columns):
    """(sequence, multiset, renaming) of each step, and the root, by loops over Python integers."""
    candidates, steps, resolvents, *_ = columns
    goal_atoms, atoms = steps.goal_atoms.tolist(), resolvents.atoms.tolist()
    result, root = [], 0
    t = r = g = m = 0
    for n in range(len(candidates.query)):
        key = slow_fold(0, candidates.query[n], candidates.side[n], *candidates.atom[n])
        for i in range(int(candidates.num_steps[n])):
            goal = goal_atoms[g : g + int(steps.num_atoms[t])]
            g += len(goal)
            options = []
            for _ in range(int(steps.num_resolvents[t])):
                options.append((int(resolvents.kind[r]), atoms[m : m + int(resolvents.num_atoms[r])]))
                m += len(options[-1][1])
                r += 1
            hashes = [slow_goal(*o) for o in options]
            choice = int(steps.choice[t])
            chosen = hashes[choice] if 0 <= choice < len(hashes) else 0
            middle = (len(options), steps.dropped_atoms[t], steps.dropped_resolvents[t])
            end = (steps.outcome[t], steps.depth[t])
            renamed = [slow_goal(k, slow_renumber(a)) for k, a in options]
            sequence = slow_fold(
                slow_goal(0, goal), sum(slow_fold(j, h) for j, h in enumerate(hashes)), *middle, choice, *end
            )
            multiset = slow_fold(slow_goal(0, goal), sum(map(slow_mix, hashes)), *middle, chosen, *end)
            in_order = sum(slow_fold(j, h) for j, h in enumerate(renamed))
            renaming = slow_fold(slow_goal(0, slow_renumber(goal)), in_order, *middle, choice, *end)
            result.append((sequence, multiset, renaming))
            root += slow_mix(slow_fold(key, i) ^ sequence)
            t += 1
    return result, root & WORD


def as_rows(digests):
    return list(zip(*(column.tolist() for column in digests), strict=True))


def widen(columns: Columns) -> Columns:
    """Return columns with identifiers of up to 31 bits, and variables as far apart."""

    def spread(atoms):
        return np.where(atoms < 0, atoms * 2**29, (atoms.astype(np.int64) * 54_013_933) % 2**31).astype(np.int32)

    steps, resolvents = columns.steps, columns.resolvents
    counts = {name: getattr(steps, name) * np.uint32(2**30) for name in ("dropped_atoms", "dropped_resolvents")}
    return columns._replace(
        candidates=columns.candidates._replace(atom=spread(columns.candidates.atom)),
        steps=steps._replace(goal_atoms=spread(steps.goal_atoms), **counts),
        resolvents=resolvents._replace(atoms=spread(resolvents.atoms)),
    )


@given(
    st.integers(0, 10**6),
    st.integers(0, 12),
    st.sampled_from([7, 1 << 15]),
    st.sampled_from([0, 4, 1 << 16]),
    st.sampled_from([lambda columns: columns, widen, make_malformed]),
)
@settings(max_examples=40)
def test_digests_are_those_of_the_definition(seed, num_candidates, block, table, change):
    columns = change(make_columns(seed, num_candidates))
    with pytest.MonkeyPatch.context() as patch:
        # Pieces of a few elements, and words without a lookup table, give the same.
        patch.setattr(module, "_BLOCK", block)
        patch.setattr(module, "_MAX_TABLE", table)
        digests = compute_digests(columns)
        root = root_digest(columns.candidates, digests.sequence)
    assert (as_rows(digests), root) == slow_digests(columns)
    zeros = {name.removeprefix("steps."): np.zeros(len(columns.steps.depth), np.uint8) for name in COUNTED}
    absent = columns._replace(steps=columns.steps._replace(**zeros))
    assert (compute_sequence(columns) == digests.sequence).all()
    assert (compute_sequence(columns, COUNTED) == compute_digests(absent).sequence).all()


def test_mix_is_splitmix64():
    # The first outputs of the published generator, seeded with 0.
    state = np.array([0, 0x9E3779B97F4A7C15], np.uint64)
    assert [hex(x) for x in mix(state).tolist()] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4"]
    expected = [slow_fold(0, -1), slow_fold(0x9E3779B97F4A7C15, 3)]
    assert fold(state, words_of(np.array([-1, 3], np.int32))).tolist() == expected


def test_counts_that_do_not_add_up_have_no_digest():
    columns = make_columns(1, 9)
    short = columns._replace(resolvents=columns.resolvents._replace(atoms=columns.resolvents.atoms[:-1]))
    with pytest.raises(ValueError, match="add up"):
        compute_digests(short)
