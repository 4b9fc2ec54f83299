"""Reports in which every leaf has a value of its own, made from the schema of reports and a real run."""

import json
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from reading import pattern_of

import kgverify as kv

SCHEMA: Final = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text("utf-8"))

_STAGES: Final = ("match_rules", "match_facts", "resolve", "prune", "score", "choose")
_LIMITS: Final = ("max_depth", "max_atoms", "max_resolvents")
NUM_CAUSES: Final = 3

_METRICS: Final = tuple(
    f"{side}.{ranks}.{metric}"
    for side in ("both", "head", "tail")
    for ranks in ("optimistic", "realistic", "pessimistic")
    for metric in ("mean_reciprocal_rank", "hits_at_1", "hits_at_3", "hits_at_10")
)
_CODES: Final = ("open", "proved", "failed", "depth_limit")

KEYS: Final[Mapping[str, Sequence[str]]] = {
    "*stages": _STAGES,
    "*exercise*limits": _LIMITS,
    "*largest": _LIMITS,
    "*enough": ("max_resolvents",),
    "minimum": ("proved", "rules"),
    "exercise/*/outcomes": ("PROVED", "FAILED"),
    "check/exercise/outcomes": ("PROVED", "FAILED"),
    "outcomes/*": ("PROVED", "FAILED"),
    "*outcomes": _CODES,
    "*layout": ("slots", "window"),
    "*versions": ("numpy", "torch"),
    "policy/score_errors": ("float32", "float64"),
    "metrics*": _METRICS,
    "intervals": tuple(name for name in _METRICS if ".realistic." in name),
}
"""The keys of each object whose keys the schema leaves open."""


class Each(NamedTuple):
    """The value of a leaf in each of the three reports; None where any will do."""

    first: Any
    second: Any
    third: Any


_OF_LIMITS: Final = {
    "limits/max_depth": 31,
    "limits/max_atoms": 17,
    "limits/max_resolvents": 43,
    "limits/dialect": {},
}

OF_REPORTS: Final[Mapping[str, Any]] = _OF_LIMITS | {
    "format": "kgverify report 1",
    "verdict": Each("AGREE", "DIVERGE", "INCONCLUSIVE"),
    "attribution/metric": "both.realistic.mean_reciprocal_rank",
    "attribution/expected": Each(0.8715, 0.2413, 0.9215),
    "attribution/actual": Each(0.2413, 0.8715, 0.3413),
    "attribution/method": Each("exact", "sampled", "sampled"),
    "attribution/basis": Each("traces", "engines", "traces"),
    "divergences/*/is_assumed": Each(True, False, False),
    "causes/*/when/unit": "rule",
    "modulo": ["names", "order"],
    "exercise/*/inferred": ["rules"],
    "coverage/rankings": 0,
    "job": {"graph": {"spec": "letters"}},
}
"""The values of leaves that mean something only with few values."""

OF_EVALUATIONS: Final[Mapping[str, Any]] = _OF_LIMITS | {
    "num_parts": 9001,
    "seconds": 12.5,
    "warm_up_seconds": 3.25,
    "candidates_per_second": 4321.5,
    "outcomes/open": Each(0, None, 0),
    "check/differences": Each([], None, []),
    "check/model/num_missing": Each(0, None, 0),
    "check/model/num_unsupported": Each(0, None, 0),
    "check/exercise/inferred": [],
    "wrong_figures": Each([], None, []),
    "minimum": Each({"proved": 2, "rules": 3}, None, {"proved": 999_999_999, "rules": 3}),
    "ranks": [],
    "aggregate": Each("", None, ""),
}
"""The same for evaluations: of the first every figure is right, the second is wrong, the third exercised too little."""


class _Filling:
    def __init__(self, number: int, schema: Mapping[str, Any], values: Mapping[str, Any], num_causes: int = 0) -> None:
        self._number, self._schema, self._values, self._num_causes = number, schema, values, num_causes
        self._counter = count(1)

    def fill(self, node: Any, path: str) -> Any:
        pattern = re.sub(r"^(exercise|outcomes|metrics)/(?:expected|actual)", r"\1/*", pattern_of(path))
        value = self._values.get(pattern)
        value = value[self._number] if isinstance(value, Each) else value
        if value is not None:
            return value
        if "$ref" in node:
            return self.fill(self._schema["$defs"][node["$ref"].rpartition("/")[2]], path)
        if "anyOf" in node:
            listed = [each for each in node["anyOf"] if each.get("type") != "null"]
            return self.fill(listed[-1 if self._number == 0 else 0], path)
        if "enum" in node:
            return node["enum"][(next(self._counter) + self._number) % len(node["enum"])]
        if node.get("type") == "object":
            return self._fill_object(node, path, pattern)
        if "prefixItems" in node:
            return [self.fill(each, f"{path}/{i}") for i, each in enumerate(node["prefixItems"])]
        if node.get("type") == "array":
            num = self._num_causes if path in ("causes", "attribution/shares") else 2
            return [self.fill(node["items"], f"{path}/{i}") for i in range(num)]
        number = next(self._counter)
        return {
            "string": f"text{number}",
            "integer": 1000 + 7 * number,
            "number": round((0.1 + 0.00713 * number) % 0.89 + 0.1, 6),
            "boolean": self._number != 1,
        }[node["type"]]

    def _fill_object(self, node: Any, path: str, pattern: str) -> dict[str, Any]:
        below = f"{path}/" if path else ""
        if "properties" in node:
            return {name: self.fill(each, f"{below}{name}") for name, each in node["properties"].items()}
        keys = next((keys for where, keys in KEYS.items() if fnmatchcase(pattern, where)), ())
        return {name: self.fill(node["additionalProperties"], f"{below}{name}") for name in keys}


def fill_report(number: int, real: Mapping[str, Any], num_causes: int = NUM_CAUSES) -> dict[str, Any]:
    """Return a report, one of three: each has another verdict, other words and flags, and the places of a real run."""
    filling = _Filling(number, SCHEMA, OF_REPORTS, num_causes)
    report = filling.fill(SCHEMA["$defs"]["Report"], "")
    divergences = []
    for i, each in enumerate(real["divergences"][: max(9, num_causes)]):
        filled = filling.fill(SCHEMA["$defs"]["Divergence"], f"divergences/{i}")
        kept = ("candidate", "atom", "query", "side", "step", "stage")
        divergences.append(
            filled
            | {name: each[name] for name in kept}
            # So that the first divergence of a cause has another number than the cause.
            | {"cause": (i + 1) % num_causes, "other_cause": (i + 2) % num_causes}
        )
    for i, cause in enumerate(report["causes"]):
        first = (i - 1) % num_causes
        cause |= {"stage": divergences[first]["stage"], "first": first}
        report["attribution"]["shares"][i]["cause"] = -1 if i == num_causes - 1 else i
    # A gain among losses.
    report["attribution"]["shares"][0]["share"] *= -2
    if number == 1:
        # The larger numbers of both sides are shown.
        sides = report["exercise"]
        report["exercise"] = {"expected": sides["actual"], "actual": sides["expected"]}
    for each, kind in zip(report["benign"], report["modulo"], strict=True):
        each["kind"] = kind
    report |= {"divergences": divergences, "first_cause": divergences[1]}
    return report


def without_causes(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report in an older form: divergences without classes, no causes, no attribution."""
    lost = {"kind": "unclassified", "evidence": "", "confidence": 0.0, "cause": -1, "other_cause": -1}
    plain = [each | lost for each in report["divergences"]]
    first = plain[report["divergences"].index(report["first_cause"])]
    return {**report, "divergences": plain, "first_cause": first, "causes": [], "attribution": None}


def fill_evaluation(number: int) -> dict[str, Any]:
    """Return the report of an evaluation, one of three."""
    schema = msgspec.json.schema(kv.EvaluationReport)
    return _Filling(number, schema, OF_EVALUATIONS).fill(schema["$defs"]["EvaluationReport"], "")
