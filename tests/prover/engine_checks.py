"""Programs from text, engines small enough for tests, and the comparison of what two engines proved."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kgverify import CandidateSet, Columns, Limits, Policy, Program, Side
from kgverify.dialects import ReferenceEngine
from kgverify.engines.policy import SHORTEST
from kgverify.program.atoms import parse_atoms
from kgverify.program.program import parse_rules
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.execution_choice import choose_layout
from kgverify.prover.native.engine import NativeEngine
from kgverify.prover.state import Layout

CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""The device of kernels: a GPU, or Triton's interpreter on the CPU."""


def program_of(facts: str, rules: str = "", queries: str = "", constants: Iterable[str] = ()) -> Program:
    """Build a program from facts `p(a,b) q(b,c)` and rules `p(X,Y) q(X,Z) p(Z,Y); q(X,Y) p(Y,X)`."""
    return Program.from_names(parse_atoms(facts), parse_rules(rules), parse_atoms(queries), constants)


def candidates_of(program: Program, queries: str) -> CandidateSet:
    """Return queries as candidates outside of a ranking, each with a query number."""
    rows = [program.symbols.encode(atom) for atom in parse_atoms(queries)]
    return candidates_at(np.array(rows, np.int32).reshape(-1, 3))


def candidates_at(atoms: NDArray[np.int32]) -> CandidateSet:
    num = len(atoms)
    return CandidateSet(np.arange(num, dtype=np.int32), np.full(num, Side.NONE, np.int8), atoms)


OURS = Limits()


class Known(NamedTuple):
    """Candidates of a program, the limits, and sizes at which a batched prover could go wrong."""

    program: Program
    candidates: CandidateSet
    limits: Limits = OURS
    sizes: Mapping[str, int] = MappingProxyType({})
    policy: Policy = SHORTEST

    @property
    def reference(self) -> ReferenceEngine:
        return ReferenceEngine(self.program, self.limits, self.policy)

    @property
    def expected(self) -> Columns:
        return self.reference.prove(self.candidates)

    def make(self, mode: str) -> Any:
        if mode == "native":
            return NativeEngine(self.program, self.limits, self.policy, threads=2)
        device = DEVICE if mode == "fused" else CPU
        layout = small_layout(self.limits, **self.sizes)
        return CompiledEngine(
            self.program, self.limits, self.policy, mode=mode, device=device.type, layout=layout, precision="float32"
        )


def known(facts: str, rules: str, queries: str, limits: Limits = OURS, **sizes: int) -> Known:
    program = program_of(facts, rules, queries)
    return Known(program, candidates_of(program, queries), limits, sizes)


def small_layout(limits: Limits, **sizes: int) -> Layout:
    """Return few slots and small windows, so that candidates wait, and steps take several ticks."""
    usual = {"slots": 5, "match_window": 64, "score_window": limits.max_resolvents + 8, "pool": 64}
    return choose_layout(limits, **usual | sizes)


def eager(program: Program, limits: Limits, policy: Policy = SHORTEST, **sizes: int) -> CompiledEngine:
    return Known(program, CandidateSet(*[np.zeros(0)] * 3), limits, sizes, policy).make("eager")


def assert_same(expected: Any, actual: Any, score_error: float = 0.0) -> None:
    """Compare columns exactly, but scores within an error and log-probabilities within that of their sums."""
    for level, other in zip(expected, actual, strict=True):
        for name, column, found in zip(level._fields, level, other, strict=True):
            assert name == "score" or found.dtype == column.dtype, name
            if name in ("score", "log_probability"):
                np.testing.assert_allclose(found, column, rtol=0, atol=1e-9 + 100 * score_error, err_msg=name)
            else:
                np.testing.assert_array_equal(found, column, err_msg=name)


def try_few_clauses_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let warps have four lanes, slots of five clauses count as heavy, of thirteen as the heaviest; measure errors on 8 goals."""
    from kgverify.prover.fused import record, ticks

    monkeypatch.setattr(ticks, "sample_size", lambda _: 8)
    monkeypatch.setattr(ticks, "_WARP", 4)
    monkeypatch.setattr(ticks, "_LIGHT", ticks._Trying(4, 4, 1, 32, 1, 64))
    monkeypatch.setattr(ticks, "_HEAVY", ticks._Trying(12, 8, 1, 2, 1, 64))
    monkeypatch.setattr(ticks, "_HEAVIEST", ticks._Trying(1 << 62, 16, 1, 2, 1, 64))
    monkeypatch.setattr(record, "_LANES", 2)
