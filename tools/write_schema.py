"""Write the JSON Schema of reports and of the other results that lead on: `python tools/write_schema.py`.

A report is described by the schema itself, another result by `#/$defs/NAME`. Descriptions are the docstrings.
"""

import functools
import json
import pathlib
import types
import typing
from typing import Any

import msgspec

from kgverify.api.bisect import Bisection
from kgverify.cli.commands.record import Recorded
from kgverify.environments.report import EnvironmentReport
from kgverify.report.evaluation import EvaluationReport
from kgverify.report.next_steps import NextStep
from kgverify.report.render.terminal import ShownCauses
from kgverify.report.report import Report
from kgverify.report.step_document import Derivation, StageLine
from kgverify.report.stepper import ShownDivergence
from kgverify.report.steps import ShownCandidateStep, ShownDerivation, ShownTrace
from kgverify.testing.campaigns.result import CampaignResult, FoundDivergence
from kgverify.trace.maintain.check import CheckReport

SCHEMA = pathlib.Path(__file__).parents[1] / "docs" / "report.schema.json"
TEMPLATE = "#/$defs/{name}"
SHOWN = ShownTrace, ShownDerivation, ShownCandidateStep, ShownDivergence, ShownCauses
OTHERS = Recorded, CampaignResult, EvaluationReport, FoundDivergence, CheckReport, Bisection, EnvironmentReport
LEADING_ON = Report, *SHOWN, *OTHERS
"""The results whose JSON has `next`, which the command line adds."""


@functools.cache
def write_as_object(kind: Any) -> Any:
    """Return `kind` with structs in place of named tuples, since `kgverify show` writes these as objects."""
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields"):
        fields = [(name, write_as_object(each)) for name, each in typing.get_type_hints(kind).items()]
        return msgspec.defstruct(kind.__name__, fields, namespace={"__doc__": kind.__doc__})
    parts = tuple(write_as_object(each) if each is not ... else each for each in typing.get_args(kind))
    if isinstance(kind, types.UnionType):
        return typing.Union[parts]  # noqa: UP007  of parts known only now
    return typing.get_origin(kind)[parts] if parts and typing.get_origin(kind) else kind


def make_schema() -> dict[str, Any]:
    """Return the schema of a report. Its definitions include the schemas of the other results."""
    documents = [write_as_object(each) for each in (Derivation, StageLine)]
    _, definitions = msgspec.json.schema_components([*LEADING_ON, NextStep, *documents], ref_template=TEMPLATE)
    for definition in definitions.values():
        if "description" in definition:
            definition["description"] = definition["description"].split("\n\n    Example:")[0].rstrip()
    of_step = {"derivation": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Derivation"}]}}
    of_step["stages"] = {"type": "array", "items": {"$ref": "#/$defs/StageLine"}}
    definitions["ShownDivergence"]["properties"] |= of_step
    steps = {"type": "array", "items": {"$ref": "#/$defs/NextStep"}}
    for each in LEADING_ON[1:]:
        definitions[each.__name__]["properties"]["next"] = steps
    return {"$ref": "#/$defs/Report", "properties": {"next": steps}, "$defs": definitions}


if __name__ == "__main__":
    SCHEMA.write_text(json.dumps(make_schema(), indent=2) + "\n", encoding="utf-8")
