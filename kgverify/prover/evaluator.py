"""kgverify's evaluator with its options, before it is made for a program. It is the native evaluator or the one on tensors."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias

from kgverify.arguments import check_fields
from kgverify.engines.plain.choice import PLAIN, choose_plain, has_torch
from kgverify.engines.policy import Policy
from kgverify.engines.protocol import Engine, Sizes, Workload
from kgverify.engines.table import COMPILED, Built, Capability
from kgverify.errors import UserError, find_missing_dependency
from kgverify.program.limits import OURS, Limits
from kgverify.program.program import Program
from kgverify.prover.faults.fault import Carrier, Composite, Fault, Plant
from kgverify.prover.faults.plant import COMPOSITES, FAULTS, choose_carrier, find_carriers, find_faults, plant_faults
from kgverify.prover.native.choice import NATIVE, choose_native, is_on_cpu, why_not_compiled, why_not_native
from kgverify.prover.native.library import find_library, why_not_available
from kgverify.ranking.draw import draw_candidates
from kgverify.ranking.rank import rank_candidates
from kgverify.step.plain_step import SOUND
from kgverify.step.search import ALL_SOUND

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from kgverify.prover.program.least_model import LeastModel
    from kgverify.prover.state import Layout

RECORDED_POOL: Final = 1 << 17
"""The largest number of candidates passed at once if steps are recorded."""

MOST_PLAIN: Final = 2_000
"""The largest number of candidates for which plain Python takes about as long as torch with its import, or less."""

LEAST_COMPILED: Final = 100_000
"""The number of candidates for which `torch.compile` saves about as much time as it takes: measured on family, on two cores."""

Mode: TypeAlias = Literal["auto", "native", "fused", "eager", "default", "reduce-overhead", "max-autotune", "plain"]
Device: TypeAlias = Literal["auto", "cpu", "cuda"]
Precision: TypeAlias = Literal["float32", "bf16x3", "fp16", "bf16"]

_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


@dataclass(frozen=True)
class Evaluator:
    """kgverify's evaluator, to be made for the program of a run.

    Attributes:
        mode: The way to run; auto is the fastest one here.
        device: The device.
        precision: Precision of the policy's matrix products; all but float32 need CUDA; docs/evaluating.md.
        slots: Derivations that are proved at the same time; chosen for the device if not given.
        memory: Maximum memory of an evaluation's batch, such as 8GiB or a number of bytes; half of the free memory if not
            given.
        faults: The names of faults to plant, such as fact-cap.
        work: The work, or the sizes, for which the batch is planned.

    UserError for an unknown choice or fault.

    Example:
        >>> import kgverify as kv
        >>> kv.verify("countries", kv.Evaluator(mode="eager"), queries=2, corruptions=5).verdict.value
        'AGREE'
    """

    mode: Mode = "auto"
    device: Device = "auto"
    precision: Precision = "float32"
    slots: int | None = None
    memory: int | str | None = None
    faults: Sequence[str] | str = ()
    work: Workload | Sizes | None = None

    name: ClassVar[str] = COMPILED
    capabilities: ClassVar[frozenset[Capability]] = frozenset(Capability) - {Capability.RANK}

    def __post_init__(self) -> None:
        check_fields(self)
        names = (self.faults,) if isinstance(self.faults, str) else tuple(self.faults)
        object.__setattr__(self, "faults", names)
        find_faults(names)
        if isinstance(self.memory, str):
            object.__setattr__(self, "memory", parse_memory(self.memory))

    @property
    def compiles(self) -> bool:
        """True if each new shape is compiled, which takes seconds."""
        return self.mode not in ("eager", NATIVE, PLAIN)

    @property
    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "work"}
        return {name: value for name, value in values.items() if value != getattr(type(self), name)}

    def planned_for(self, work: Workload | Sizes) -> "Evaluator":
        """Return the same evaluator with the given sizes, or with sizes chosen for the work."""
        return replace(self, work=work)

    def find_built(self, mode: str) -> Built | None:
        """Return the native library or the fused kernels that were compiled on this machine."""
        if mode == NATIVE:
            return find_library()
        if mode != "fused":
            return None
        from kgverify.prover.execution.compilation import find_kernels

        return find_kernels()

    def __call__(self, program: Program, limits: Limits, policy: Policy) -> Engine:
        """Make the evaluator. UserError if it does not support the program, or its mode or device is not available."""
        faults = find_faults(self.faults)
        try:
            engine = self._make(program, limits, policy, faults)
        except ImportError as error:
            # The error names the extra that brings torch.
            raise find_missing_dependency(error) or error from error
        return engine

    def _make(self, program: Program, limits: Limits, policy: Policy, faults: tuple[Fault, ...]) -> Engine:
        mode = self.mode if policy.scorer is None else PLAIN
        carrier = choose_carrier(faults, mode, prefers_plain=self._is_small())
        plant = plant_faults(limits, policy, faults, carrier) if faults else None
        stages = None if plant is None or carrier is Carrier.ANY else plant.stages
        names = tuple(fault.name for fault in faults)
        engine: Engine
        reasons = None
        if policy.scorer is None:
            reasons = choose_native(self.mode, self.device, self.precision, limits, policy, stages)
        if reasons is not None:
            from kgverify.prover.native.engine import NativeEngine

            engine = NativeEngine(program, limits, policy, reasons=reasons, faults=names)
        elif (plain := self._choose_plain(limits, policy, stages, carrier)) is not None:
            from kgverify.engines.plain.engine import PlainEngine

            engine = PlainEngine(
                program,
                limits,
                policy,
                stages=stages or SOUND,
                searching=ALL_SOUND if plant is None else plant.searching,
                reasons=plain,
                faults=names,
            )
        else:
            from kgverify.prover.engine import CompiledEngine

            engine = CompiledEngine(
                program,
                limits,
                policy,
                mode=self.mode,
                device=self.device,
                precision=self.precision,
                compiles=isinstance(self.work, Workload) and self.work.total >= LEAST_COMPILED,
                layout=self._choose_layout(program, limits, policy, has_faults=bool(faults)),
                stages=stages,
                faults=names,
            )
        return engine if plant is None else _plant_around(engine, plant)

    def _is_small(self) -> bool:
        """Return whether the plain evaluator takes less time than torch, or torch is missing."""
        is_small = not isinstance(self.work, Workload) or self.work.total <= MOST_PLAIN
        return not has_torch() or (is_small and self.device in ("auto", "cpu"))

    def _choose_plain(self, limits: Limits, policy: Policy, stages: Any, carrier: Carrier) -> tuple[str, ...] | None:
        why = ""
        if policy.scorer is not None:
            # Whatever mode is requested: no other one can call a function.
            return choose_plain("auto", "cpu", "float32", f"the only one that calls {policy.name}, though it is slow")
        if self.mode == "auto" and carrier is not Carrier.TENSORS:
            if not has_torch():
                why = "torch is not installed"
            elif limits.dialect.of_step != OURS or limits.dialect.searching.kind == "sample":
                why = "the only one that supports this dialect"
            elif self._is_small() and (carrier is Carrier.PLAIN or is_on_cpu(self.device)):
                why = "it is quick enough for few candidates"
        if why:
            why = f"{why}; not native, since {why_not_native(self.device, self.precision, limits, policy, stages)}"
        return choose_plain(self.mode, self.device, self.precision, why)

    def _choose_layout(self, program: Program, limits: Limits, policy: Policy, *, has_faults: bool) -> "Layout | None":
        from kgverify.prover.execution_choice import choose_layout

        work = self.work
        if isinstance(work, Sizes):
            return choose_layout(
                limits,
                slots=work.slots if self.slots is None else self.slots,
                atoms=limits.max_atoms + work.atoms,
                resolvents=limits.max_resolvents + work.resolvents,
                match_window=work.match_window,
                score_window=max(limits.max_resolvents, work.score_window),
                pool=work.pool,
            )
        # Faults run in ticks of stages, which take more memory than the ticks that recording is planned for.
        if work is None or (work.records and (has_faults or is_on_cpu(self.device))):
            return None if self.slots is None else choose_layout(limits, slots=self.slots)
        from kgverify.prover.execution.device import resolve_device
        from kgverify.prover.execution_choice import Demand, choose_evaluation_layout

        device = resolve_device(self.device)
        layout = choose_evaluation_layout(
            program,
            limits,
            policy,
            device,
            work.num_candidates(device.type),
            Demand(self.memory if isinstance(self.memory, int) else None, self.slots, self.mode, work.records),
        )
        return layout._replace(pool=min(layout.pool, RECORDED_POOL)) if work.records else layout

    def build_least_model(
        self, program: Program, *, device: str, most_work: float, must_stop: Callable[[], bool]
    ) -> "LeastModel | None":
        """Return the least model of a program; None if it takes more work, does not fit, or needs torch."""
        try:
            from kgverify.prover.program.least_model import LeastModel, TooMuchWorkError
        except ModuleNotFoundError:
            return None
        try:
            return LeastModel(program, device=device, most_work=most_work, must_stop=must_stop)
        except (TooMuchWorkError, UserError):
            return None

    def keep_device(self) -> Callable[[], None]:
        """Return a function that gives another thread the current GPU of this thread."""
        from kgverify.prover.execution.device import stay_on_this_gpu

        return stay_on_this_gpu()

    def join_processes(self) -> "tuple[Store, int, int] | None":
        """Join the processes that `torchrun` started with this one; None for a single process. UserError as in `join_team`."""
        from kgverify.prover.execution.device import join_team

        return join_team()

    def list_modes(self) -> list[str]:
        """Return the modes that this machine has, the quickest to start first."""
        modes = [PLAIN] if why_not_available() else [NATIVE, PLAIN]
        if not has_torch():
            return modes
        compiled = [] if self.why_not_compiled() or why_not_available() else ["default"]
        return [*modes, "eager", *compiled, *(["fused"] if self.uses_cuda() else [])]

    def uses_cuda(self) -> bool:
        """Return whether the evaluator runs on CUDA here. UserError for a device that does not exist."""
        return not is_on_cpu(self.device)

    def why_not_compiled(self) -> str | None:
        """Return the reason why `torch.compile` is switched off; None if it is not."""
        return why_not_compiled()

    def catalogue(self) -> tuple[list[tuple[Fault, list[str]]], list[Composite]]:
        """Return the faults that can be planted, each with the evaluators that support it, and the composite faults."""
        carried = [(fault, [each.value for each in find_carriers(name)]) for name, fault in FAULTS.items()]
        return carried, list(COMPOSITES.values())


def parse_memory(text: str) -> int:
    """Return the bytes of `8GiB`, `500M` or `1000000`. UserError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if found is None or not float(found[1]):
        raise UserError(f"expected a size, found {text!r}", where="memory", fix="give one such as 8GiB or 500MiB")
    return int(float(found[1]) * _UNITS[found[2]])


def _plant_around(engine: Engine, plant: Plant) -> Engine:
    """Return the engine inside the layer that a fault adds, with the fault's own functions for corruptions and ranks."""
    wrapped = plant.wrap_engine(engine)
    for name, function, sound in (("draw", plant.draw, draw_candidates), ("rank", plant.rank, rank_candidates)):
        if function is not sound:
            setattr(wrapped, name, function)
    return wrapped
