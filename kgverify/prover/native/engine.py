"""The native evaluator as an engine. Its library proves; this module passes arrays to it and takes columns from it."""

import ctypes
import platform
import time
from collections.abc import Iterator, Sequence
from ctypes import c_double, c_int64, c_void_p
from itertools import accumulate, chain, pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kgverify.engines.policy import Policy, check_policy
from kgverify.engines.protocol import (
    Evaluation,
    Positions,
    Results,
    StageOutputs,
    StepDigests,
    join_digests,
    no_results,
)
from kgverify.errors import UserError
from kgverify.program.limits import Limits
from kgverify.program.outcomes import GoalKind, Origin, Stage
from kgverify.program.program import Program
from kgverify.progress import Progress, no_progress
from kgverify.prover.native.choice import NATIVE
from kgverify.prover.native.library import load_library
from kgverify.step.clauses import number_variables
from kgverify.threads import count_threads
from kgverify.trace.model.columns import (
    FIELD_OF,
    STEP_COLUMNS,
    Candidates,
    CandidateSet,
    Columns,
    Digests,
    Resolvents,
    Steps,
    concatenate,
    starts_of,
)
from kgverify.trace.model.header import EngineInfo
from kgverify.trace.model.schema import TraceLevel
from kgverify.trace.model.score_tolerance import bound_score_error
from kgverify.trace.model.stage_items import read_step_outputs

MOST: Final = 2**31 - 1
"""The largest number of facts or symbols, since their indices are int32."""


class Arrays(ctypes.Structure):
    """A structure of numbers and of pointers to arrays, which it keeps alive."""

    held: list[NDArray[Any]]

    @classmethod
    def of(cls, *values: Any) -> "Arrays":
        """Return the structure with these values; arrays become pointers."""
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
    rounding=c_double,
)
PositionArrays = _structure("PositionArrays", **dict.fromkeys(("depth", "goal_start", "atom_start", "atoms"), c_void_p))

COLUMNS: Final = {
    path: FIELD_OF[path].dtypes[-1]
    for path in (
        *(f"candidates/{name}" for name in Candidates._fields[3:]),
        *(f"steps/{name}" for name in STEP_COLUMNS),
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
    """Index a program. UserError if its indices do not fit in 32 bits."""
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


def policy_arrays(policy: Policy, rounding: float) -> Arrays:
    """Return the weights of a `two_tower`. rounding: the error bound of its scores in float32, in nats."""
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
        rounding,
    )


def plain_goals(atoms: NDArray[np.int32], starts: Sequence[int]) -> list[tuple[tuple[int, int, int], ...]]:
    """Return goals as tuples of atoms."""
    rows = [(predicate, first, second) for predicate, first, second in atoms.tolist()]
    return [tuple(rows[begin:end]) for begin, end in pairwise(starts)]


NOTHING, DIGESTS, EVERYTHING = range(3)
"""The columns that the library records of each step."""

_FIRST_PART: Final = 64
"""The number of candidates of an engine's first call of the library.

Later calls have more, so that each takes about `_PART_SECONDS`.
"""
_PART_SECONDS: Final = 0.5
"""The time after which a call reports progress, and an interruption takes effect."""
_PER_THREAD: Final = 16
"""The smallest number of candidates that is worth starting another thread."""


class _Ran(NamedTuple):
    """A call of the library for some candidates: columns by path, counts as `native_count` gives them, and the clauses tried."""

    candidates: CandidateSet
    columns: dict[str, NDArray[Any]]
    counts: tuple[int, ...]
    smallest_gap: float
    tried: NDArray[Any]
    tried_atoms: NDArray[np.int32]

    def read(self) -> tuple[Columns, NDArray[np.uint64]]:
        """Return the candidates with their steps, and the digests of the steps."""

        def group(name: str, fields: Sequence[str]) -> list[NDArray[Any]]:
            return [self.columns[f"{name}/{field}"] for field in fields]

        candidates = Candidates(*self.candidates, *group("candidates", Candidates._fields[3:]))
        steps, resolvents = Steps(*group("steps", STEP_COLUMNS)), Resolvents(*group("resolvents", Resolvents._fields))
        return Columns(candidates, steps, resolvents), self.columns["digests/sequence"]


class NativeEngine:
    """An engine that proves candidates on the cores of the CPU, by a library that is compiled on its first use.

    threads: the largest number of threads; by default `$OMP_NUM_THREADS`, or the cores that this process may use. Their
             number changes no derivation, score or digest
    reasons: the reasons for the device, mode and precision, in words

    UserError if the policy does not fit the program, or the library cannot be compiled.
    """

    # `record` computes the digests of steps while they are proved.
    proves_ahead = takes_floors = True
    # The number of candidates of the next call.
    _part_size = _FIRST_PART

    def __init__(
        self,
        program: Program,
        limits: Limits,
        policy: Policy,
        *,
        threads: int | None = None,
        faults: tuple[str, ...] = (),
        reasons: tuple[str, ...] = (),
        name: str = "compiled",
    ) -> None:
        check_policy(policy, program, limits)
        self.limits = limits
        self._library = load_library()
        self._faults, self.reasons, self._name = faults, reasons, name
        self._threads = count_threads() if threads is None else threads
        self._score_error = bound_score_error(policy.info, "float32")
        self._num_symbols = len(program.symbols.predicates), len(program.symbols.constants)
        self._program = program_arrays(program)
        make = self._library.native_make
        make.restype = ctypes.c_void_p
        weights = None if policy.name == "shortest" else policy_arrays(policy, self._score_error)
        self._policy = weights
        # Without recorded steps, candidates that differ in one argument share steps in which scores do not depend on it.
        self.shares_derivations = weights is None
        sizes = limits.max_depth, limits.max_atoms, limits.max_resolvents, int(limits.exclude_query)
        made = make(
            ctypes.byref(self._program),
            ctypes.byref(LimitNumbers.of(*sizes)),
            None if weights is None else ctypes.byref(weights),
        )
        if not made:
            raise MemoryError("there is not enough memory for the program")
        self._engine = ctypes.c_void_p(made)

    def __del__(self) -> None:
        if hasattr(self, "_engine"):
            self._library.native_free(self._engine)

    @property
    def info(self) -> EngineInfo:
        """The mode, the device, the precision and the error of its scores."""
        return EngineInfo(
            name=self._name,
            mode=NATIVE,
            device="cpu",
            precision="float32",
            score_error=self._score_error,
            versions={"python": platform.python_version(), "numpy": np.__version__},
            faults=self._faults,
        )

    def prove(self, candidates: CandidateSet, progress: Progress = no_progress) -> Columns:
        """Run every candidate to its end."""
        return concatenate([recorded.read()[0] for recorded in self.record(candidates, progress)])

    def record(
        self, candidates: CandidateSet, progress: Progress = no_progress, *, level: TraceLevel = TraceLevel.STEPS
    ) -> Iterator[_Ran]:
        """Run every candidate to its end, part by part, with the digests of the steps.

        level: the required columns; at level `digests` the resolvents are omitted, and the columns of steps are zeros
        """
        recording = DIGESTS if level is TraceLevel.DIGESTS else EVERYTHING
        return self._run_parts(candidates, progress, recording)

    def evaluate(
        self,
        candidates: CandidateSet,
        progress: Progress = no_progress,
        *,
        has_digests: bool = False,
        floor: NDArray[np.float64] | None = None,
    ) -> Evaluation:
        """Run every candidate to its end without recording steps.

        This is faster than `prove`, with the same endings.

        has_digests: also take the digests of the steps
        floor:       float64 [N]; a derivation that is open after a step, with a log-probability below its floor, is STOPPED
        """
        results, digests = [no_results()], []
        num_choices = num_rescored = 0
        smallest = float("inf")
        for ran in self._run_parts(candidates, progress, DIGESTS if has_digests else NOTHING, floor):
            columns = ran.columns
            ended = Results(
                columns["candidates/outcome"].astype(np.int32),
                columns["candidates/is_limited"].astype(np.bool_),
                columns["candidates/log_probability"],
            )
            results.append(ended)
            nothing = np.zeros(0, np.uint64)
            sequence = Digests(columns["digests/sequence"], nothing, nothing)
            digests.append(StepDigests(columns["candidates/num_steps"], sequence))
            num_choices, num_rescored = num_choices + ran.counts[6], num_rescored + ran.counts[7]
            smallest = min(smallest, ran.smallest_gap)
        joined = Results(*map(np.concatenate, zip(*results, strict=True)))
        taken = join_digests(digests) if has_digests else None
        return Evaluation(joined, num_choices, num_rescored, smallest, taken)

    def step(self, positions: Positions) -> Columns:
        """Take one step from each position."""
        return self._run(positions.candidates, EVERYTHING, positions=positions).read()[0]

    def probe(self, position: Positions) -> StageOutputs:
        """Take one step with the same code as any other step, and return the output of each stage."""
        ran = self._run(position.candidates, EVERYTHING, positions=position, is_probed=True)
        columns, _ = ran.read()
        shown = read_step_outputs(columns)
        limited, choice = shown[Stage.LIMIT][0], shown[Stage.CHOOSE]
        kind, _, _, goal = limited[choice]
        outputs = _read_tried(ran)
        return outputs | {
            Stage.SELECT: tuple(columns.steps.goal_atoms[0].tolist()),
            **{stage: shown[stage] for stage in (Stage.LIMIT, Stage.SCORE, Stage.CHOOSE, Stage.FINISH)},
            Stage.CLOSE: _close(outputs[Stage.REVISIT]),
            Stage.ADVANCE: (kind, goal, int(columns.steps.depth[0]) + 1),
        }

    def _run_parts(
        self,
        candidates: CandidateSet,
        progress: Progress,
        recording: int,
        floor: NDArray[np.float64] | None = None,
    ) -> Iterator[_Ran]:
        begin = 0
        # The columns for zero candidates have the same types.
        while begin < max(1, len(candidates.query)):
            rows = slice(begin, begin + self._part_size)
            part = candidates.take(rows)
            began = time.perf_counter()
            ran = self._run(part, recording, floor=None if floor is None else floor[rows])
            seconds = max(time.perf_counter() - began, 1e-6)
            progress(len(part.query))
            begin += self._part_size
            self._part_size = max(_FIRST_PART, min(4 * self._part_size, int(len(part.query) * _PART_SECONDS / seconds)))
            yield ran

    def _run(
        self,
        candidates: CandidateSet,
        recording: int,
        *,
        floor: NDArray[np.float64] | None = None,
        positions: Positions | None = None,
        is_probed: bool = False,
    ) -> _Ran:
        """Call the library. MemoryError if it runs out of memory."""
        num = len(candidates.query)
        queries = np.ascontiguousarray(candidates.atom, np.int32).reshape(-1, 3)
        floors = None if floor is None else np.ascontiguousarray(floor, np.float64)
        given = None if positions is None else self._position_arrays(positions)
        library = self._library
        library.native_run.restype = ctypes.c_void_p
        run = library.native_run(
            self._engine,
            ctypes.c_void_p(queries.ctypes.data),
            ctypes.c_int64(num),
            None if floors is None else ctypes.c_void_p(floors.ctypes.data),
            None if given is None else ctypes.byref(given),
            ctypes.c_int32(recording),
            ctypes.c_int32(is_probed),
            ctypes.c_int64(max(1, min(self._threads, num // _PER_THREAD))),
        )
        if not run:
            raise MemoryError("there is not enough memory for the steps of these candidates")
        handle = ctypes.c_void_p(run)
        try:
            return _copy(library, handle, candidates)
        finally:
            library.native_free_run(handle)

    def _position_arrays(self, positions: Positions) -> Arrays:
        """Return the positions for the library. UserError if one does not fit."""
        lowest = int(positions.atoms[:, 1:].min(initial=0))
        if (
            positions.num_atoms.max(initial=0) > self.limits.max_atoms
            or -lowest > 2 * self.limits.max_atoms
            or positions.num_goals.min(initial=1) < 1
        ):
            raise UserError("a step exceeds its limits", where="compiled", fix="name reference, or larger --limits")
        return PositionArrays.of(
            positions.depth.astype(np.int64),
            starts_of(positions.num_goals),
            starts_of(positions.num_atoms),
            np.ascontiguousarray(positions.atoms, np.int32),
        )


def _copy(library: ctypes.CDLL, run: ctypes.c_void_p, candidates: CandidateSet) -> _Ran:
    counted, smallest = (ctypes.c_int64 * 8)(), ctypes.c_double()
    library.native_count(run, counted, ctypes.byref(smallest))
    counts = tuple(counted)
    num_steps, num_goal_atoms, num_resolvents, num_atoms, num_tried, num_tried_atoms = counts[:6]
    lengths = {
        "candidates": len(candidates.query),
        "steps": num_steps,
        "digests": num_steps,
        "resolvents": num_resolvents,
    }
    shapes: dict[str, tuple[int, ...]] = {path: (lengths[path.split("/")[0]],) for path in COLUMNS}
    shapes |= {"steps/goal_atoms": (num_goal_atoms, 3), "resolvents/atoms": (num_atoms, 3)}
    columns = {path: np.zeros(shape, COLUMNS[path]) for path, shape in shapes.items()}
    library.native_copy(run, ctypes.byref(ColumnArrays.of(*columns.values())))
    tried, atoms = np.zeros(num_tried, TRIED), np.zeros((num_tried_atoms, 3), np.int32)
    library.native_copy_probe(run, ctypes.c_void_p(tried.ctypes.data), ctypes.c_void_p(atoms.ctypes.data))
    return _Ran(candidates, columns, counts, smallest.value, tried, atoms)


def _read_tried(ran: _Ran) -> StageOutputs:
    """Return the outputs of the stages from `match_rules` to `revisit`."""
    tried = ran.tried
    # Pruning leaves the atoms that are renamed.
    lengths = np.stack((tried["num_resolved"], tried["num_pruned"], tried["num_pruned"]), 1).ravel()
    goals = plain_goals(ran.tried_atoms, [0, *accumulate(lengths.tolist())])
    kinds, origins = tried["origin_kind"].tolist(), tried["origin"].tolist()
    # Only `rename` shows the numbers of variables.
    resolved, pruned = ([number_variables(iter(goal)) for goal in goals[number::3]] for number in (0, 1))
    renamed = tuple(zip(kinds, origins, goals[2::3], strict=True))
    return {
        Stage.MATCH_RULES: tuple(o for k, o in zip(kinds, origins, strict=True) if k == Origin.RULE),
        Stage.MATCH_FACTS: tuple(o for k, o in zip(kinds, origins, strict=True) if k == Origin.FACT),
        Stage.RESOLVE: tuple(zip(kinds, origins, resolved, strict=True)),
        Stage.PRUNE: tuple(zip(kinds, origins, pruned, strict=True)),
        Stage.RENAME: renamed,
        Stage.REVISIT: tuple(each for each, is_left in zip(renamed, tried["is_left"].tolist(), strict=True) if is_left),
    }


def _close(survivors: Sequence[tuple[int, int, Any]]) -> tuple[tuple[int, int, int, Any], ...]:
    """Return the output of `close`; the library keeps only the part that `limit` leaves."""
    for kind, origin, atoms in survivors:
        if not atoms:
            return ((int(GoalKind.TRUE), kind, origin, ()),)
    return tuple((int(GoalKind.GOAL), *each) for each in survivors) or ((int(GoalKind.FALSE), 0, 0, ()),)
