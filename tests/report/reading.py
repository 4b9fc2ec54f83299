"""Reading a rendering back: each of its lines is matched with the phrases, and each value in it compared with the report.

A phrase of phrases.toml is text with values in braces:

    {causes/0/num_later:,}   the value at a path of the report, in a format; a list is joined by commas, or by what follows `|`
    {first_cause~finding}    words for a part of the report, by a function of `WORDS`
    {first_cause~kind*}      the same, for a text that is as long as possible
    {lockstep=True}          no text: the words around it say that the value at the path is this one
    [... ¦ ...]              one of several texts, or none
    (s)                      the plural of a word
    @name(path)              the phrase `name` of the table `parts`, with the path in place of $
    <name>                   a word, by which the paths of the phrase are named as well
    <i#>                     a number from 1, which is the index <i> in paths
    <n>                      in a path: the number of earlier lines that this phrase read
    <?a>                     in a path: any index or name with which the whole phrase is true
"""

import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import ceil
from pathlib import Path
from typing import Any, Final, NamedTuple

from kgverify.codes import Code

_TOKEN: Final = re.compile(
    r"\{(?P<path>[^}~:|=*]*)(?:~(?P<words>\w+))?(?P<is_long>\*)?(?::(?P<format>[^}|=]+))?(?:\|(?P<joint>[^}=]*))?(?:=(?P<value>[^}]*))?\}"
    r"|<(?P<name>\w+)(?P<is_number>#?)>|(?P<plural>\(s\))|(?P<mark>[\[\]¦])|@(?P<part>\w+)(?:\((?P<of>[^)]*)\))?"
)
_NUMBER: Final = r"[-+]?[\d.,]*\d(?:e[-+]?\d+)?%?"
_NAME: Final = re.compile(r"<(\??\w+)>")
_PHRASES: Final = tomllib.loads((Path(__file__).with_name("phrases.toml")).read_text("utf-8"))
MISSING: Final = object()

MEANINGS: Final = {
    "bits": "numbers differ in bits, within the tolerance",
    "tolerance": "numbers differ beyond the tolerance, and nothing else differs",
    "order": "resolvents differ in their order or their clauses, or candidates in their process, not in content",
    "renaming": "goals, resolvents or counts differ, but the same resolvent is chosen",
    "choice": "the difference changes the choice, not only the resolvents",
    "outcome": "the difference changes the outcome of a candidate, not only its steps",
    "rank": "the difference changes ranks, not only scores",
    "metric": "the difference changes metrics, not only ranks",
}
BENIGN: Final = {"names": "names of variables", "order": "the order of resolvents", "duplicates": "repeated resolvents"}
REQUIRED: Final = {
    "proved": "candidates proved",
    "rules": "rules used",
    "choices": "steps with more than one resolvent",
}
CODES: Final = {"open": "left open", "depth_limit": "at the depth limit"}
LIMITS: Final = ("max_resolvents", "max_atoms", "max_depth")
SCORES: Final = {"resolvents.score", "candidates.log_probability"}


def _both(exercise: Any, table: str, name: str) -> int:
    return max(side[table].get(name, 0) for side in exercise.values())


def _untouched(exercise: Any) -> list[str]:
    known = [name for name in LIMITS if any(name in side["limits"] for side in exercise.values())]
    return [name for name in known if not _both(exercise, "limits", name)]


def _other_items(minimum: Any) -> str:
    rest = {name: number for name, number in minimum.items() if name != "proved"}
    option = ",".join(f"{name}={number}" for name, number in rest.items()) or "none"
    return f"--minimum {option}, or minimum={rest} in Python"


def _lower(exercise: Any, option: str) -> str:
    lower = {name: _both(exercise, "largest", name) - 1 for name in _untouched(exercise)}
    return " or ".join(f"{option}{name}={value}" for name, value in lower.items() if value > 0)


_FINDINGS: Final = (
    ("is_assumed", "assumed: others that differ alike in the recorded steps were replayed, and all have this stage"),
    ("is_replayed", "found by replaying the step stage by stage"),
)


def _finding(divergence: Any) -> str:
    for name, words in _FINDINGS:
        if divergence[name]:
            return words
    if divergence["field"].startswith("stage."):
        return "found in the recorded outputs of the stages"
    by_digest = divergence["field"] == "digests.sequence"
    return "or a later stage: only digests were recorded, and they differ" if by_digest else "inferred from the traces"


def _kind(divergence: Any) -> str:
    words = ": ".join(filter(None, (divergence["kind"], divergence["evidence"])))
    return f"{divergence['field']} differs" if words == "unclassified" else words


def _label(cause: Any) -> str:
    return f"{cause['stage']} ({', '.join(filter(None, (cause['kind'], cause['situation'])))})"


def _shares(report: Any, *, is_short: bool = False) -> str:
    """Name the three causes that change the metric most, with the change that each explains."""
    loss, stages = report["attribution"], [each["stage"] for each in report["causes"]]
    sign = 1 if loss["expected"] >= loss["actual"] else -1
    parts = []
    for each in sorted(loss["shares"], key=lambda each: -abs(each["share"]))[:3]:
        number = each["cause"]
        name = "rounding" if is_short else "rounding at near-ties"
        if number >= 0:
            name = stages[number] if is_short else _label(report["causes"][number])
            name = f"#{number + 1} {name}" if stages.count(stages[number]) > 1 else name
        parts += [f"{name} explains {sign * each['share']:.4f}"] if each["share"] else []
    return ", ".join(parts) or "no cause explains anything"


def _unused_rules(side: Any) -> str:
    named = side["unused_rules"][:3]
    rest = side["num_rules"] - side["rules"] - len(named)
    return "; ".join(named) + f" and {rest:,} more" * bool(named and rest)


def _special_rules(equality: Any) -> str:
    fields: dict[str, list[str]] = {}
    for each in equality:
        fields.setdefault(each["rule"], []).append(each["field"])
    return "; ".join(f"{', '.join(of)} {rule}" for rule, of in fields.items() if rule != "equal")


def _rule(rule: Any) -> str:
    others = dict.fromkeys(part for each in rule["also"] for part in each.split("; ") if part not in rule["rule"])
    num, known = rule["num_unexplained"], rule["num_known_triples"]
    ranks, triples = (
        f"{number:,} {word}{'s' * (number != 1)}" for number, word in ((num, "rank"), (known, "known triple"))
    )
    words = f"by an unknown rule; the closest, {rule['rule']}, leaves {ranks} unexplained" if num else rule["rule"]
    words += f" (other rules explain the ranks as well: {' / '.join(others)})" * bool(others)
    words += ", computed, since the trace has no ranks" * (not rule["is_recorded"])
    words += f"; not filtered: {triples} among the candidates" * bool(known)
    return "; ".join((f"ranked {words}", *rule["remarks"]))


def _engine(engine: Any) -> str:
    about = ", ".join(filter(None, (engine["mode"], engine["device"], engine["precision"], *engine["faults"])))
    return f"{engine['name']} ({about})" if about else engine["name"]


class Words(NamedTuple):
    """Words for a part of the report, and the leaves below it that they state."""

    say: Callable[[Any], Any]
    of: Sequence[str] | Callable[[Any], Sequence[str]] = ()


WORDS: Final[Mapping[str, Words]] = {
    "number": Words(len),
    # What is only compared with the report, since it comes from a trace.
    "json": Words(lambda value: json.dumps(value)),
    "start": Words(lambda text: text[:12], ("",)),
    "limits": Words(
        lambda limits: ", ".join(f"{name} {value}" for name, value in limits.items() if value not in (None, {})), ("",)
    ),
    "exists": Words(lambda value: value is not None),
    "negative": Words(lambda value: -value, ("",)),
    "next": Words(lambda number: number + 1, ("",)),
    "items": Words(lambda items: ", ".join(f"{name} {value}" for name, value in items.items()), ("",)),
    "engine": Words(_engine, ("name", "mode", "device", "precision", "faults")),
    "kind": Words(_kind, ("kind", "evidence")),
    "code": Words(lambda each: f"[{Code[each['kind'].upper()]}]", ("kind",)),
    "code_of_near_ties": Words(lambda _: f"[{Code.NEAR_TIE}]"),
    "code_of_too_little": Words(lambda _: f"[{Code.TOO_LITTLE_EXERCISED}]"),
    "finding": Words(_finding, lambda each: [name for name, _ in _FINDINGS if each[name]][:1]),
    "step": Words(
        lambda each: f"candidate {each['candidate']}" + f", step {each['step']}" * (each["step"] >= 0),
        ("candidate", "step"),
    ),
    "label": Words(_label, ("stage", "kind", "situation")),
    "difference": Words(
        lambda cause: ": ".join(filter(None, (cause["kind"], cause["situation"]))), ("kind", "situation")
    ),
    "shares": Words(_shares, ("attribution/shares/*/share", "attribution/shares/*/cause")),
    "short_shares": Words(
        lambda report: _shares(report, is_short=True), ("attribution/shares/*/share", "attribution/shares/*/cause")
    ),
    "rule": Words(_rule, ("rule", "also", "is_recorded", "num_unexplained", "num_known_triples", "remarks")),
    "codes": Words(
        lambda counts: ", ".join(
            f"{number:,} {CODES.get(name, name)}" for name, number in counts.items() if number or name == "proved"
        ),
        ("",),
    ),
    "different": Words(lambda each: each["num_checked"] - each["num_equal"] - each["num_near_ties"]),
    "percent": Words(lambda share: f"{100 * share:.3g} %", ("",)),
    "microseconds": Words(lambda rate: f"{1e6 / rate:,.0f}" if rate < 1e4 else f"{1e6 / rate:.3g}", ("",)),
    "parts_done": Words(lambda report: report["num_parts"] - report["num_parts_resumed"]),
    "lost": Words(lambda loss: abs(loss["expected"] - loss["actual"]), ("expected", "actual")),
    "verb": Words(lambda loss: "lost" if loss["expected"] >= loss["actual"] else "gained"),
    "meaning": Words(MEANINGS.get),
    "benign": Words(lambda kinds: " and ".join(", ".join(BENIGN[kind] for kind in kinds).rsplit(", ", 1)), ("",)),
    "kind_of_benign": Words(BENIGN.get, ("",)),
    "has_scores": Words(lambda fields: not SCORES.isdisjoint(fields)),
    "special": Words(lambda rules: sum(rule["rule"] != "equal" for rule in rules)),
    "special_rules": Words(_special_rules, ("",)),
    "equal": Words(lambda rules: sum(rule["rule"] == "equal" for rule in rules)),
    "proved": Words(lambda side: (side["outcomes"] or {}).get("PROVED", 0), ("outcomes/PROVED",)),
    "stages": Words(
        lambda stages: ", ".join(f"{name} {number:,}" for name, number in stages.items() if name != "choose"),
        lambda stages: [name for name in stages if name != "choose"],
    ),
    "minimum": Words(lambda items: ",".join(f"{name}={value}" for name, value in items.items()) or "none", ("",)),
    "inferred": Words(lambda items: " and ".join(REQUIRED[name] for name in items), ("",)),
    "waived": Words(
        lambda report: ", ".join(
            REQUIRED[name]
            for name in report["minimum"]
            if report["exercise"]["expected"]["outcomes" if name == "proved" else name] is None
        )
    ),
    "scoring": Words(
        lambda made: " and ".join(
            dict.fromkeys(
                made[side]["name"] for side in ("expected", "actual") if made[side]["mode"].endswith("its scores")
            )
        )
    ),
    "unused": Words(lambda side: side["num_rules"] - side["rules"]),
    "has_unused": Words(lambda side: side["rules"] is not None and side["rules"] < (side["num_rules"] or 0)),
    "unused_rules": Words(_unused_rules, ("unused_rules",)),
    "never": Words(lambda exercise: " or ".join(_untouched({"": exercise}))),
    "other_items": Words(_other_items, ("rules", "choices")),
    "untouched": Words(lambda exercise: " or ".join(_untouched(exercise))),
    "lower": Words(lambda exercise: _lower(exercise, "--limits ")),
    "lower_again": Words(lambda exercise: _lower(exercise, "")),
    "idle": Words(
        lambda stages: ", ".join(
            name for name, number in stages.items() if not number and name not in ("limit", "choose")
        )
    ),
}


def _bars(values: Any) -> list[str]:
    """Return the lengths of the bars of each value: the longest has 30 characters."""
    pairs = [(each["num_wrong"], each["num_right"]) for each in values]
    most = max((number for pair in pairs for number in pair), default=1)
    return [" ".join(f"{ceil(30 * number / most)}" for number in pair) for pair in pairs]


def derive(report: Any, folder: Path, candidates: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """Count what renderings count of a report and of the candidates of its expected trace, as a table in CSV has them."""
    diverging = Counter((f"{each['query']}", each["side"]) for each in report["divergences"])
    is_inconclusive = report["verdict"] == "INCONCLUSIVE"
    rankings = {}
    for each in candidates:
        result = "failure" if (each["query"], each["side"]) in diverging else "skipped" if is_inconclusive else "passed"
        rankings.setdefault(f"{each['query']} {each['side']}", {"atom": each["atom"], "result": result})
    unknown = {f"{query} {side}" for query, side in diverging} - rankings.keys()
    skipped = sum(each["result"] == "skipped" for each in rankings.values())
    suite = {"tests": 1 + len(rankings) + len(unknown), "failures": len(diverging)}
    return {
        "bars": [_bars((each["when"] or {}).get("values", [])) for each in report["causes"]],
        "causes_after": {f"{number}": len(report["causes"]) - number for number in (12, 20)},
        "folder": shlex.quote(str(folder)),
        "rankings": rankings,
        "suite": suite | {"errors": int(is_inconclusive), "skipped": skipped},
        "further_members": [
            sum(each["cause"] == i for each in report["divergences"]) - 11 for i in range(len(report["causes"]))
        ],
        "more": [diverging[f"{each['query']}", each["side"]] - 1 for each in report["divergences"]],
    }


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of every leaf of a document; empty lists and objects are leaves."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not items:
        yield path, value
    for name, each in items:
        yield from leaves(each, f"{path}/{name}" if path else f"{name}")


def is_default(value: Any) -> bool:
    """True for a value that a rendering may leave out: nothing, zero, False, or -1 for an index that points to nothing."""
    return value in (None, "", 0, -1) or value == [] or value == {}


def pattern_of(path: str) -> str:
    """Return a path with a star for each index."""
    return re.sub(r"(?<=/)\d+(?=/|$)", "*", path)


def find(value: Any, path: str) -> Any:
    """Return the value at a path, or `MISSING`."""
    for name in filter(None, path.split("/")):
        if isinstance(value, dict):
            value = value.get(name, MISSING)
        else:
            value = (
                value[int(name)] if isinstance(value, list) and name.isdecimal() and int(name) < len(value) else MISSING
            )
    return value


class _Value(NamedTuple):
    """A value in a phrase."""

    path: str
    words: str
    format: str
    joint: str
    value: str | None

    def show(self, report: Any, path: str, names: Mapping[str, str]) -> str | None:
        """Return the text of the value at a path; None without a value, or if the words around it are not true."""
        value = find(report, path)
        if self.words and value not in (MISSING, None):
            value = WORDS[self.words].say(value)
        if self.value is not None:
            return "" if str(None if value is MISSING else value) == _fill(self.value, names) else None
        if value is MISSING or value is None:
            return None
        if isinstance(value, list):
            return self.joint.join(map(str, value))
        return format(value, self.format) if not isinstance(value, str) else value

    def leaves_of(self, report: Any, path: str) -> list[str]:
        """Return the paths that are stated by a value at a path."""
        parts = WORDS[self.words].of if self.words else ("",)
        parts = parts(find(report, path)) if callable(parts) else parts
        return ["/".join(filter(None, (path, part))) for part in parts]


class _Phrase:
    """A phrase, as a regular expression with the values in it."""

    def __init__(self, text: str) -> None:
        self.text, self.values, self.num_read = text, dict[str, _Value](), 0
        self.names: set[str] = set()
        self.pattern = re.compile(self._compile(text, ""), re.DOTALL)
        paths = " ".join(value.path for value in self.values.values())
        self.searched = sorted({name for name in _NAME.findall(paths) if name.startswith("?")})

    def _compile(self, text: str, of: str) -> str:
        parts, end = [], 0
        text = text.replace("$", of)
        for token in _TOKEN.finditer(text):
            parts.append(re.escape(text[end : token.start()]))
            end = token.end()
            parts.append(self._compile_token(token.groupdict(), token["of"]))
        return "".join([*parts, re.escape(text[end:])])

    def _compile_token(self, token: Mapping[str, Any], of: str | None) -> str:
        if token["part"]:
            return self._compile(_PHRASES["parts"][token["part"]].strip().replace("\\n", "\n"), of or "")
        if token["mark"]:
            return {"[": "(?:", "]": ")?", "¦": "|"}[token["mark"]]
        if token["plural"]:
            return "s?"
        if token["name"]:
            name, is_known = token["name"], token["name"] in self.names
            self.names.add(name)
            pattern = r"\d+" if token["is_number"] else r"[\w.]+"
            return f"(?P={name})" if is_known else f"(?P<{name}>{pattern})"
        key = f"_{len(self.values)}"
        words, joint = token["words"] or "", ", " if token["joint"] is None else token["joint"]
        self.values[key] = _Value(token["path"], words, token["format"] or "", joint, token["value"])
        pattern = _NUMBER if token["format"] else ".*" if token["is_long"] else ".*?"
        pattern = r"\[KG\d+\]" if words == "code" or words.startswith("code_of") else pattern
        pattern = "" if token["value"] is not None else pattern
        return f"(?P<{key}>{pattern})"

    def read(self, line: str, report: Any) -> tuple[list[str], bool] | None:
        """Return the paths that the line states, and whether it states them as the report does; None if it is another line."""
        found = self.pattern.fullmatch(line)
        if found is None:
            return None
        names = {name: found[name] for name in self.names if found[name] is not None}
        names |= {name: f"{int(value) - 1}" for name, value in names.items() if f"<{name}#>" in self.text}
        names["n"] = f"{self.num_read}"
        for chosen in product(*(self._choices(report, names, name) for name in self.searched)):
            read, is_true = self._compare(found, report, names | dict(zip(self.searched, chosen, strict=True)))
            if is_true:
                self.num_read += 1
                return read, True
        return [], False

    def _choices(self, report: Any, names: Mapping[str, str], searched: str) -> Iterable[str]:
        path = next(value.path for value in self.values.values() if f"<{searched}>" in value.path)
        holder = find(report, _fill(path.partition(f"<{searched}>")[0].rstrip("/"), names))
        return map(
            str, holder if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else [""]
        )

    def _compare(self, found: re.Match[str], report: Any, names: Mapping[str, str]) -> tuple[list[str], bool]:
        read = []
        for key, value in self.values.items():
            if found[key] is not None:
                path = _fill(value.path, names)
                if not _is_shown(found[key], value.show(report, path, names)):
                    return [], False
                read += value.leaves_of(report, path)
        return read, True


def _fill(path: str, names: Mapping[str, str]) -> str:
    return _NAME.sub(lambda found: names.get(found[1], found[0]), path)


def _is_shown(text: str, whole: str | None) -> bool:
    """True if a text is the whole one, or its beginning with the number of further characters."""
    cut = re.fullmatch(r"(.*)… \(([\d,]+) more characters\)", text, re.DOTALL)
    if cut is None or whole is None:
        return text == whole
    return whole.startswith(cut[1]) and len(whole) == len(cut[1]) + int(cut[2].replace(",", ""))


class Read(NamedTuple):
    """The result of reading: the paths of the report that were stated, and the lines that no phrase reads, or that are wrong."""

    paths: frozenset[str]
    unread: list[str]
    wrong: list[str]

    def stated(self, report: Any) -> set[str]:
        """Return the leaves of a report at the paths and below them."""
        found = set()
        for path, _ in leaves(report):
            above = (path.rsplit("/", i)[0] for i in range(path.count("/") + 1))
            if not self.paths.isdisjoint([*above, pattern_of(path)]):
                found.add(path)
        return found


def read_lines(rendering: str, lines: Iterable[str], report: Any) -> Read:
    """Read the lines of a rendering, each with one of its phrases. report: the report, with what is counted of it."""
    texts = "\n".join(_PHRASES["lines"][each] for each in ("all", rendering))
    phrases = [_Phrase(text.replace("\\n", "\n")) for text in texts.splitlines() if text.strip()]
    paths: set[str] = set()
    unread, wrong = [], []
    for line in lines:
        results = [found for phrase in phrases if (found := phrase.read(line, report)) is not None]
        true = [read for read, is_true in results if is_true]
        paths.update(*true)
        if not true:
            (wrong if results else unread).append(line)
    return Read(frozenset(paths), unread, wrong)
