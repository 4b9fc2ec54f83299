"""The arrays that the native evaluator's library reads and writes; the sources declare the same structures in this order."""

import ctypes
from collections.abc import Sequence
from ctypes import c_double, c_int64, c_void_p
from itertools import chain, pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.policy import Policy
from kgverify.errors import UserError
from kgverify.program.limits import Limits
from kgverify.program.program import Program
from kgverify.trace.model.columns import FIELD_OF, Candidates, Resolvents, Steps, starts_of

MOST: Final = 2**31 - 1
"""The most facts or symbols: their indices are int32."""


class Arrays(ctypes.Structure):
    """A structure of numbers and of pointers to arrays, which it keeps alive."""

    held: list[NDArray[Any]]

    @classmethod
    def of(cls, *values: Any) -> "Arrays":
        """Return the structure with these values, arrays as pointers."""
        held = [value for value in values if isinstance(value, np.ndarray)]
        assert all(array.flags.c_contiguous for array in held)
        made = cls(*(value.ctypes.data if isinstance(value, np.ndarray) else value for value in values))
        made.held = held
        return made


def _structure(name: str, **fields: Any) -> type[Arrays]:
    return type(name, (Arrays,), {"_fields_": list(fields.items())})


ProgramArrays = _structure(
    "ProgramArrays",
    num_predicates=c_int64,
    num_facts=c_int64,
    **dict.fromkeys(
        (
            "facts",
            "fact_first",
            "rule_atoms",
            "rule_start",
            "rule_variables",
            "rules_by_head",
            "rule_first",
        ),
        c_void_p,
    ),
)
LimitNumbers = _structure(
    "LimitNumbers", **dict.fromkeys(("max_depth", "max_atoms", "max_resolvents", "exclude_query"), c_int64)
)
PolicyArrays = _structure(
    "PolicyArrays",
    **dict.fromkeys(
        ("num_predicates", "num_constants", "num_variables", "embedding", "hidden", "num_blocks", "is_double"), c_int64
    ),
    **dict.fromkeys(
        (
            "predicates",
            "constants",
            "variables",
            "input_weight",
            "input_bias",
            "weights",
            "biases",
            "scales",
            "shifts",
        ),
        c_void_p,
    ),
    score_error=c_double,
)
PositionArrays = _structure("PositionArrays", **dict.fromkeys(("depth", "goal_start", "atom_start", "atoms"), c_void_p))

COLUMNS: Final = {
    path: FIELD_OF[path].dtypes[-1]
    for path in (
        *(f"candidates/{name}" for name in Candidates._fields[3:]),
        *(f"steps/{name}" for name in Steps._fields),
        "digests/sequence",
        *(f"resolvents/{name}" for name in Resolvents._fields),
    )
}
"""The columns of a run, in the order of the library's structure."""
ColumnArrays = _structure("ColumnArrays", **dict.fromkeys(COLUMNS, c_void_p))

TRIED: Final = np.dtype(
    [("origin_kind", "u1"), ("is_left", "u1"), ("origin", "<i4"), ("num_resolved", "<i4"), ("num_pruned", "<i4")],
    align=True,
)
"""A clause that a probe tried."""


def program_arrays(program: Program) -> Arrays:
    """Index a program. UserError if its indices do not fit 32 bits."""
    num_predicates, num_constants = len(program.symbols.predicates), len(program.symbols.constants)
    sizes = num_predicates, num_constants, len(program.facts), len(program.rules)
    if max(sizes) > MOST:
        raise UserError(
            f"found {max(sizes):,} facts, rules or symbols, expected at most {MOST:,}",
            where="graph",
            fix="split the graph",
        )
    facts = np.ascontiguousarray(program.facts, np.int32).reshape(-1, 3)
    bounds = np.arange(num_predicates + 1)
    rules = [(rule.clause_head, *rule.body) for rule in program.rules]
    heads = np.array([atoms[0].predicate for atoms in rules], np.int64)
    variables = [-min(0, *(term for atom in atoms for term in atom[1:])) for atoms in rules]
    return ProgramArrays.of(
        num_predicates,
        len(facts),
        facts,
        np.searchsorted(facts[:, 0], bounds).astype(np.int64),
        np.array([*chain.from_iterable(rules)], np.int32).reshape(-1, 3),
        starts_of(np.array([len(atoms) for atoms in rules], np.int64)),
        np.array(variables, np.int32),
        np.argsort(heads, kind="stable").astype(np.int32),
        np.searchsorted(np.sort(heads), bounds).astype(np.int64),
    )


def limit_numbers(limits: Limits) -> Arrays:
    """Return the numbers of the limits."""
    return LimitNumbers.of(limits.max_depth, limits.max_atoms, limits.max_resolvents, int(limits.exclude_query))


def policy_arrays(policy: Policy, score_error: float) -> Arrays:
    """Return the weights of a `two_tower`. score_error: the bound of its scores in float32, nats."""
    weights = policy.weights
    names = ("embedding.predicate", "embedding.constant", "embedding.variable")
    dtype = np.result_type(np.float32, *(weights[name].dtype for name in names))
    embeddings = [np.ascontiguousarray(weights[name], dtype) for name in names]

    def blocks(part: str) -> NDArray[np.float64]:
        parts = [weights[f"block.{i}.{part}"].reshape(-1) for i in range(policy.num_blocks)]
        return np.concatenate(parts, dtype=np.float64) if parts else np.zeros(0)

    return PolicyArrays.of(
        *(len(rows) for rows in embeddings),
        embeddings[0].shape[1],
        len(weights["input.bias"]),
        policy.num_blocks,
        int(dtype == np.float64),
        *embeddings,
        np.ascontiguousarray(weights["input.weight"], np.float64),
        np.ascontiguousarray(weights["input.bias"], np.float64),
        *map(blocks, ("weight", "bias", "norm.weight", "norm.bias")),
        score_error,
    )


def plain_goals(atoms: NDArray[np.int32], starts: Sequence[int]) -> list[tuple[tuple[int, int, int], ...]]:
    """Return goals as tuples of atoms."""
    rows = [(predicate, first, second) for predicate, first, second in atoms.tolist()]
    return [tuple(rows[begin:end]) for begin, end in pairwise(starts)]
