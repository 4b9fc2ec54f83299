"""Reports in which every leaf has a value of its own, made from the schema of reports and a real run."""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

from reading import pattern_of

SCHEMA: Final = json.loads((Path(__file__).parents[2] / "docs" / "report.schema.json").read_text("utf-8"))

_STAGES: Final = ("match_rules", "match_facts", "resolve", "prune", "score", "choose")
_LIMITS: Final = ("max_depth", "max_atoms", "max_resolvents")
_SIDES: Final = ("expected", "actual")
NUM_CAUSES: Final = 3

KEYS: Final[Mapping[str, Sequence[str]]] = {
    "exercise/*/outcomes": ("PROVED", "FAILED"),
    "exercise/*/stages": _STAGES,
    "exercise/*/limits": _LIMITS,
    "exercise/*/largest": _LIMITS,
    "exercise/*/enough": ("max_resolvents",),
    "minimum": ("proved", "rules"),
    "outcomes/*": ("PROVED", "FAILED"),
    "*layout": ("slots", "window"),
    "*versions": ("numpy", "torch"),
    "policy/score_errors": ("float32", "float64"),
    "metrics/*": tuple(
        f"{side}.{ranks}.{metric}"
        for side in ("both", "head", "tail")
        for ranks in ("optimistic", "realistic", "pessimistic")
        for metric in ("mean_reciprocal_rank", "hits_at_1", "hits_at_3", "hits_at_10")
    ),
}
"""The keys of each object whose keys the schema leaves open."""

VALUES: Final[Mapping[str, Any]] = {
    "format": "kgverify report 1",
    "attribution/metric": "both.realistic.mean_reciprocal_rank",
    "attribution/expected": 0.8715,
    "attribution/actual": 0.2413,
    "attribution/method": ["exact", "sampled", "sampled"],
    "attribution/basis": ["traces", "engines", "traces"],
    "caches/state": ["warm", "partly warm", "unused"],
    "causes/*/when/unit": "rule",
    "modulo": ["names", "order"],
    "exercise/*/inferred": ["rules"],
    "limits/max_depth": 31,
    "limits/max_atoms": 17,
    "limits/max_resolvents": 43,
    "limits/dialect": {},
    "coverage/rankings": 0,
    "job": {"graph": {"spec": "letters"}},
}
"""The values of leaves that mean something only with few values: one, or one for each report."""


class _Filling:
    def __init__(self, number: int) -> None:
        self.number, self._counter = number, count(1)

    def fill(self, node: Any, path: str) -> Any:
        pattern = re.sub(r"^(exercise|outcomes|metrics)/(?:expected|actual)", r"\1/*", pattern_of(path))
        if pattern in VALUES:
            value = VALUES[pattern]
            return value[self.number] if isinstance(value, list) and len(value) == 3 else value
        if "$ref" in node:
            return self.fill(SCHEMA["$defs"][node["$ref"].rpartition("/")[2]], path)
        if "anyOf" in node:
            listed = [each for each in node["anyOf"] if each.get("type") != "null"]
            return self.fill(listed[-1 if self.number == 0 else 0], path)
        if "enum" in node:
            listed = node["enum"]
            return (
                listed[(next(self._counter) + self.number) % len(listed)] if path != "verdict" else listed[self.number]
            )
        if node.get("type") == "object":
            return self._fill_object(node, path, pattern)
        if node.get("type") == "array":
            num = NUM_CAUSES if path in ("causes", "attribution/shares") else 2
            return [self.fill(node["items"], f"{path}/{i}") for i in range(num)]
        number = next(self._counter)
        return {
            "string": f"text{number}",
            "integer": 1000 + 7 * number,
            "number": round((0.1 + 0.00713 * number) % 0.89 + 0.1, 6),
            "boolean": self.number != 1,
        }[node["type"]]

    def _fill_object(self, node: Any, path: str, pattern: str) -> dict[str, Any]:
        if "properties" in node:
            return {
                name: self.fill(each, f"{path}/{name}" if path else name) for name, each in node["properties"].items()
            }
        keys = next(
            (keys for where, keys in KEYS.items() if pattern == where or pattern.endswith(where.lstrip("*"))), ()
        )
        return {name: self.fill(node["additionalProperties"], f"{path}/{name}") for name in keys}


def fill_report(number: int, real: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report, one of three: each has another verdict, other words and flags, and the places of a real run."""
    filling = _Filling(number)
    report = filling.fill(SCHEMA["$defs"]["Report"], "")
    divergences = []
    for i, each in enumerate(real["divergences"][:9]):
        filled = filling.fill(SCHEMA["$defs"]["Divergence"], f"divergences/{i}")
        kept = ("candidate", "atom", "query", "side", "step", "stage")
        divergences.append(filled | {name: each[name] for name in kept} | {"cause": i % NUM_CAUSES, "other_cause": -1})
    for i, cause in enumerate(report["causes"]):
        cause |= {"stage": divergences[i]["stage"], "first": i}
        report["attribution"]["shares"][i]["cause"] = i - (i == 2) * 3
    if number == 1:
        # The larger numbers of both sides are shown.
        sides = report["exercise"]
        report["exercise"] = {"expected": sides["actual"], "actual": sides["expected"]}
    for each, kind in zip(report["benign"], report["modulo"], strict=True):
        each["kind"] = kind
    report |= {"divergences": divergences, "first_cause": divergences[1]}
    return report
