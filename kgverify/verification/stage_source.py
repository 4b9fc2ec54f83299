"""The code of a stage in an engine: the function of the stage, or the function that its author wrote."""

import inspect
from typing import Any, Final

from kgverify.comparison.result import SourceCode
from kgverify.files.code_location import locate_code
from kgverify.program.outcomes import Stage
from kgverify.runs.run import Pipeline

_OF_PIPELINE: Final = {Stage.CORRUPT: "draw", Stage.RANK: "rank", Stage.METRIC: "rank"}
_OF_KGVERIFY: Final = ("kgverify", "kgreference")
AUTHORS: Final = ("expand", "find_successors", "resolve", "take_steps", "take_step", "decide_all", "decide", "prove")
"""The methods that an author of an engine writes, each in place of the following ones."""


def find_source(pipeline: Pipeline, stage: str) -> SourceCode | None:
    """Return the code of a stage; None if it is unknown, as that of compiled kernels.

    An engine's class may name the function itself, in the attribute `made_of`.
    """
    function = _find_function(pipeline, stage)
    found = locate_code(function) if function is not None else None
    name = getattr(getattr(function, "func", function), "__qualname__", "")
    return SourceCode(found.file, found.line, name, found.text, found.last_line) if found is not None else None


def _find_function(pipeline: Pipeline, stage: str) -> Any:
    if stage in _OF_PIPELINE:
        return getattr(pipeline, _OF_PIPELINE[Stage(stage)])
    engine: Any = inspect.unwrap(pipeline.engine)  # type: ignore[arg-type]
    of_stage, kind = getattr(getattr(engine, "stages", None), stage, None), type(engine)
    methods = (inspect.getattr_static(kind, name, None) for name in (stage, *AUTHORS))
    # Methods of an adapter's base class are kgverify's.
    own = (
        each for each in (of_stage, *methods) if not getattr(each, "__module__", "kgverify").startswith(_OF_KGVERIFY)
    )
    return getattr(kind, "made_of", None) or next(own, of_stage)
