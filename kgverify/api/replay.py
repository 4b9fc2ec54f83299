"""`kgverify.replay`: run a reproducer again."""

from collections.abc import Sequence
from pathlib import Path

from kgverify.api.inputs import EngineLike, check_compiled_options, list_faults
from kgverify.engines.table import COMPILED
from kgverify.laws.replay import Replay, replay_apart
from kgverify.laws.replay import replay as replay_reproducer
from kgverify.runs.engine_makers import EAGER, EngineSpec, Factory, find_maker, name_engine, require_trust
from kgverify.testing.checking.failure import DEATH
from kgverify.testing.reproducers.reproducer import Reproducer
from kgverify.testing.reproducers.text_format import read_reproducer


def replay(
    reproducer: str | Path | Reproducer,
    engine: EngineLike | None = None,
    *,
    reference: EngineLike | None = None,
    faults: str | Sequence[str] = (),
    mode: str | None = None,
    device: str | None = None,
    trust: bool = False,
) -> Replay:
    """Run a reproducer again, to see whether it still diverges and in the same way.

    Args:
        reproducer: A file that `kgverify.shrink`, `kgverify.fuzz` or the pytest plugin wrote, or a reproducer.
        engine: The engine to run instead of the reproducer's: `"compiled"`, `"reference"`, `"module:name"`,
            `"file.py:name"`, or a class or function of `(program, limits, policy)`.
        reference: The engine to compare with instead of the reproducer's, given in the same way.
        faults: Faults to plant in the compiled evaluator instead of the reproducer's.
        mode: Mode of the compiled evaluator, instead of the reproducer's.
        device: Device of the compiled evaluator, instead of the reproducer's.
        trust: Whether to import the engines that the file names. Without it only kgverify's own engines run, and those
            that you name: a file from a stranger could name any code.

    Returns:
        The result: `.verdict`, `.is_same` (whether it diverges in the same way), and both values in its text.

    Raises:
        UserError: If the file cannot be read, names an engine that is not trusted, or the engine cannot be made.

    Example:
        >>> import kgverify as kv
        >>> broken = kv.fuzz("compiled", faults="last-fact-lost", examples=40, corpus="corpus").new[0]
        >>> kv.replay(broken.file).is_same
        True
        >>> kv.replay(broken.file, "compiled").verdict.value
        'AGREE'
    """
    if faults and engine is None:
        engine = COMPILED
    where = "--fault" if faults else "--engine"
    where_reference = "--reference"
    if not isinstance(reproducer, Reproducer):
        file, named = str(reproducer), (engine, reference)
        reproducer = read_reproducer(Path(reproducer))
        if engine is None:
            where = f"{file}: engine"
            require_trust(reproducer.engine, where, "--engine", named=named, trust=trust)
        if reference is None:
            where_reference = f"{file}: reference"
            require_trust(reproducer.reference, where_reference, "--reference", named=named, trust=trust)
    spec = reproducer.engine if engine is None else engine
    expected = reproducer.reference if reference is None else reference
    given = {"mode": mode, "device": device, "faults": list_faults(faults)}
    check_compiled_options(*(each.name if isinstance(each, EngineSpec) else each for each in (spec, expected)), **given)
    sides = [_choose(each, mode, device) for each in (spec, expected)]
    if faults:
        sides[0 if engine == COMPILED else 1] = EngineSpec(
            COMPILED, mode or EAGER.mode, device or EAGER.device, list_faults(faults)
        )
    makers = find_maker(sides[0], where), find_maker(sides[1], where_reference)
    written = [each if isinstance(each, EngineSpec) else EngineSpec(name_engine(each)) for each in sides]
    made = reproducer.with_engine(*written)
    is_apart = made.signature.kind == DEATH and all(isinstance(each, EngineSpec) for each in sides)
    return replay_apart(made) if is_apart else replay_reproducer(made, *makers)


def _choose(engine: EngineSpec | EngineLike, mode: str | None, device: str | None) -> EngineSpec | Factory:
    """Return an engine with the mode and the device given."""
    spec = EAGER._replace(name=engine) if isinstance(engine, str) else engine
    if isinstance(spec, EngineSpec):
        return spec._replace(mode=mode or spec.mode, device=device or spec.device)
    return spec  # type: ignore[return-value]
