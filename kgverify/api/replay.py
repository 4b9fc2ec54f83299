"""`kgverify.replay`: run a reproducer again."""

from pathlib import Path

from kgverify.arguments import checked
from kgverify.engines.table import EngineMaker
from kgverify.laws.replay import Replay, replay_apart
from kgverify.laws.replay import replay as replay_reproducer
from kgverify.runs.engine_makers import EngineSpec, Factory, find_maker, name_engine, require_trust
from kgverify.runs.job import EngineLike, Reference, write_down
from kgverify.testing.checking.failure import DEATH
from kgverify.testing.reproducers.text_format import Reproducer, read_reproducer


@checked
def replay(
    reproducer: str | Path | Reproducer,
    engine: EngineLike | None = None,
    *,
    reference: EngineLike | None = None,
    trust: bool = False,
) -> Replay:
    """Run a reproducer again, to see whether it still diverges and in the same way.

    Args:
        reproducer: A file that `kgverify.shrink`, `kgverify.fuzz` or the pytest plugin wrote, or a reproducer.
        engine: The engine to run instead of the reproducer's: `kgverify.Evaluator(...)`, `"compiled"`, `"reference"`,
            `"module:name"`, `"file.py:name"`, or a class or function of `(program, limits, policy)`.
        reference: The engine to compare with instead of the reproducer's, given in the same way.
        trust: Whether to import the engines that the file names. Without it only kgverify's own engines run, and those
            that you name: a file from a stranger could name any code.

    Returns:
        The result: `.verdict`, `.is_same` (whether it diverges in the same way), and both values in its text.

    Raises:
        UserError: If the file cannot be read, names an engine that is not trusted, or the engine cannot be made.

    Example:
        >>> import kgverify as kv
        >>> broken = kv.fuzz(kv.Evaluator(faults="last-fact-lost"), examples=40, corpus="corpus").divergences[0]
        >>> kv.replay(broken.file).is_same
        True
        >>> kv.replay(broken.file, "compiled").verdict.value
        'AGREE'
    """
    where, where_reference = "engine", "reference"
    if not isinstance(reproducer, Reproducer):
        file, named = str(reproducer), (engine, reference)
        reproducer = read_reproducer(Path(reproducer))
        if engine is None:
            where = f"{file}: engine"
            require_trust(reproducer.engine, where, "engine", named=named, trust=trust)
        if reference is None:
            where_reference = f"{file}: reference"
            require_trust(reproducer.reference, where_reference, "reference", named=named, trust=trust)
    sides = [
        recorded if given is None else _describe(given)
        for recorded, given in ((reproducer.engine, engine), (reproducer.reference, reference))
    ]
    makers = find_maker(sides[0], where), find_maker(sides[1], where_reference)
    written = [each if isinstance(each, EngineSpec) else EngineSpec(name_engine(each)) for each in sides]
    made = reproducer.with_engine(*written)
    is_apart = made.signature.kind == DEATH and all(isinstance(each, EngineSpec) for each in sides)
    return replay_apart(made) if is_apart else replay_reproducer(made, *makers)


def _describe(engine: EngineLike) -> EngineSpec | Factory:
    """Return the specification of an engine, or the class or function itself."""
    if isinstance(engine, str | EngineMaker | Reference):
        return write_down(engine)
    return engine  # type: ignore[return-value]
