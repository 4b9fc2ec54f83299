"""`kgverify.replay`: run a reproducer again."""

from collections.abc import Sequence
from pathlib import Path

from kgverify.api.inputs import EngineLike, list_faults
from kgverify.laws.replay import Replay
from kgverify.laws.replay import replay as replay_reproducer
from kgverify.testing.checking.engine_makers import COMPILED, EAGER, EngineSpec, as_maker, find_maker
from kgverify.testing.reproducers.reproducer import Reproducer
from kgverify.testing.reproducers.text_format import read_reproducer


def replay(
    reproducer: str | Path | Reproducer,
    engine: EngineLike | None = None,
    *,
    faults: str | Sequence[str] = (),
    mode: str | None = None,
    device: str | None = None,
) -> Replay:
    """Run a reproducer again, to see whether it still diverges and in the same way.

    Args:
        reproducer: A file that `kgverify.shrink`, `kgverify.fuzz` or the pytest plugin wrote, or a reproducer.
        engine: The engine to run instead of the reproducer's: `"compiled"`, `"module:name"`, or a class or function of
            `(program, limits, policy)`.
        faults: Faults to plant in the compiled evaluator instead of the reproducer's.
        mode: Mode of the compiled evaluator, instead of the reproducer's.
        device: Device of the compiled evaluator, instead of the reproducer's.

    Returns:
        The result: `.verdict`, `.is_same` (whether it diverges in the same way), and both values in its text.

    Raises:
        UserError: If the file cannot be read, or the engine cannot be made.

    Example:
        >>> import kgverify as kv
        >>> broken = kv.fuzz("compiled", faults="last-fact-lost", examples=40, corpus="corpus").new[0]
        >>> kv.replay(broken.file).is_same
        True
        >>> kv.replay(broken.file, "compiled").verdict.value
        'AGREE'
    """
    where = "--fault" if faults else "--engine"
    if not isinstance(reproducer, Reproducer):
        where = where if faults or engine is not None else f"{reproducer}: engine"
        reproducer = read_reproducer(Path(reproducer))
    if engine is not None and not isinstance(engine, str):
        return replay_reproducer(reproducer, as_maker(engine))  # type: ignore[arg-type]
    spec = reproducer.engine if engine is None else EAGER._replace(name=engine)
    if faults:
        spec = EngineSpec(COMPILED, EAGER.mode, EAGER.device, list_faults(faults))
    spec = spec._replace(mode=mode or spec.mode, device=device or spec.device)
    return replay_reproducer(reproducer.with_engine(spec), find_maker(spec, where))
