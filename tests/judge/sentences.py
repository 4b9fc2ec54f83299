"""A checker of reports: what a saved report states is checked against the columns of its two traces.

It shares no code with the package: `python sentences.py RUN...` prints what the columns contradict, and what it could not check.
"""

import json
import math
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from columns import FACT, NO_NUMBERS, ORDINARY, PROVED, RULE, TRUE, Clause, Numbers, Pair, Place, Recorded, Step
from evidence import check_drawn, check_evidence
from experiments import Problem, ProblemReader, Take
from rankings import Ranks, check_patterns
from remedies import check_remedies
from words import Instance, SeenStep, Unknown, Value, find_value, read_phrase

LEVELS = ("bits", "tolerance", "order", "renaming", "choice", "outcome", "rank", "metric")
KINDS = {"fact": FACT, "rule": RULE}
NO_CANDIDATE = "no such candidate"
WHOLE_STEPS = ("close", "choose", "advance", "finish")
LEAST_SHARE = 0.9
"""The precision and recall of a condition that holds "mostly", in all of the run."""
MOST_SUBSETS = 10
"""The most causes whose subsets are all tried."""


class Checked(NamedTuple):
    """The sentences that the columns contradict, the number of those that they confirm, and what was not checked."""

    contradicted: list[str]
    num_confirmed: int
    not_checked: list[str]


class Case(NamedTuple):
    """An instance, and whether it went wrong."""

    instance: Instance
    is_wrong: bool


class Checker:
    """The check of one report."""

    def __init__(
        self, report: dict[str, Any], expected: Recorded, actual: Recorded, numbers: Numbers = NO_NUMBERS
    ) -> None:
        self.report = report
        self.pair = Pair(expected, actual, float((report.get("rounding") or {}).get("bound", 0.0)), numbers)
        self.stepped: Recorded | None = None
        self.take: Take | None = None
        self.contradicted: list[str] = []
        self.not_checked: list[str] = []
        self.num_confirmed = 0

    @classmethod
    def of(
        cls, report: dict[str, Any], folder: Path, numbers: Numbers = NO_NUMBERS, take: Take | None = None
    ) -> "Checker":
        """Return the checker of a report about the two traces of a saved run.

        numbers: those of the engine under test
        take:    takes the steps of experiments again; None if the engines are not there
        """
        checker = cls(report, *(Recorded.read(folder / f"{name}.h5") for name in ("expected", "actual")), numbers)
        checker.take = take
        if report["lockstep"] and (folder / "lockstep.h5").exists():
            checker.stepped = Recorded.read(folder / "lockstep.h5")
        return checker

    def check(self) -> Checked:
        """Check everything that the report states."""
        if self.report["coverage"]["fields"] == ["rankings"]:
            num = len(Ranks.of(self.pair).both)
            self._state(self.report["coverage"]["rankings"] == num, f"{num} ranks are of both sides")
        else:
            self._check_run()
            for sentence, is_true in check_remedies(self.report, self.pair):
                self._state(is_true, sentence)
        self._check_metrics()
        self._check_notes()
        self._check_drawn()
        if self.stepped is not None:
            self.pair.follow(self.stepped)
        for number, each in enumerate(self.report["divergences"]):
            self._check_divergence(number, each)
        for number, cause in enumerate(self.report["causes"] or []):
            self._check_cause(number, cause)
        self._check_shares()
        return Checked(self.contradicted, self.num_confirmed, self.not_checked)

    def _state(self, is_true: bool, sentence: str) -> None:
        if is_true:
            self.num_confirmed += 1
        else:
            self.contradicted.append(sentence)

    # The run

    def _check_run(self) -> None:
        report, pair = self.report, self.pair
        covered = report["coverage"]
        for role, side in zip(("expected", "actual"), pair.sides, strict=True):
            num = len(side.candidates)
            self._state(
                covered[f"candidates_{role}"] == num, f"{role}: {covered[f'candidates_{role}']} candidates, not {num}"
            )
            outcomes = side.column("candidates/outcome")
            stated = (report["outcomes"] or {}).get(role)
            if outcomes is not None and stated:
                names = dict(enumerate(("OPEN", "PROVED", "FAILED", "DEPTH_LIMIT")))
                found = Counter(names.get(each, str(each)) for each in outcomes)
                self._state(
                    {k: v for k, v in stated.items() if v} == dict(found),
                    f"{role} outcomes: {stated}, not {dict(found)}",
                )
            if (report["exercise"] or {}).get(role):
                self._check_exercise(role, side, report["exercise"][role])
        self._state(
            covered["candidates"] == len(pair.pairs),
            f"{covered['candidates']} pairs of candidates, not {len(pair.pairs)}",
        )

    def _check_exercise(self, role: str, side: Recorded, stated: dict[str, Any]) -> None:
        steps = [step for each in side.steps for step in each]
        self._state(stated["steps"] == len(steps), f"{role}: {stated['steps']} steps, not {len(steps)}")
        if side.has("steps/dropped_atoms"):
            for name, k in (("max_atoms", 0), ("max_resolvents", 1)):
                num = sum(bool(step.dropped and step.dropped[k]) for step in steps)
                if name in stated["limits"]:
                    self._state(
                        stated["limits"][name] == num,
                        f"{role}: {name} reached {stated['limits'][name]} times, not {num}",
                    )
        most = max((len(step.resolvents) for step in steps), default=0)
        largest = stated["largest"].get("max_resolvents", most)
        self._state(largest == most, f"{role}: at most {largest} resolvents, not {most}")

    def _check_metrics(self) -> None:
        stated = self.report["metrics"] or {}
        for role, side in zip(("expected", "actual"), self.pair.sides, strict=True):
            if not stated.get(role):
                continue
            if not side.has("rankings/optimistic"):
                self.not_checked.append("metrics without recorded ranks")
                continue
            found = compute_metrics(
                *(side.columns[f"rankings/{name}"] for name in ("side", "optimistic", "pessimistic"))
            )
            for key, value in stated[role].items():
                if key in found:
                    self._state(
                        math.isclose(value, found[key], abs_tol=1e-12), f"{role} {key}: {value}, not {found[key]}"
                    )

    # Divergences

    def _place(self, each: dict[str, Any]) -> Place | None:
        row = each["candidate"]
        is_extra = each["expected"] == NO_CANDIDATE
        if is_extra or each["step"] < 0 or row not in self.pair.actual_of:
            return None
        return Place(row, self.pair.actual_of[row], each["step"])

    def _check_divergence(self, number: int, each: dict[str, Any]) -> None:
        where = f"divergence {number + 1} ({each['stage']} {each['kind']} at {each['atom']}, step {each['step']})"
        place = self._place(each)
        if place is None or self.report["modulo"] or (self.report["lockstep"] and not self.pair.has_lockstep):
            return
        left, right = (self.pair.step(side, place) for side in (0, 1))
        if self.pair.has_lockstep:
            if left is not None and right is not None and each["stage"] not in ("recycle", "advance"):
                self._state(self.pair.differ(left, right) or each["is_replayed"], f"{where}: the steps are equal")
        elif each["stage"] != "recycle" and not self.report["near_ties"]:
            first = self.pair.first_difference.get(place.expected)
            self._state(
                first == each["step"] or each["is_replayed"], f"{where}: the first difference is at step {first}"
            )
        if left is None or right is None:
            return
        sides = [side.column("candidates/outcome") for side in self.pair.sides]
        if each["level"] in LEVELS[:5] and None not in sides and not self.pair.has_lockstep:
            ends = sides[0][place.expected], sides[1][place.actual]
            self._state(ends[0] == ends[1] or 0 in ends, f"{where}: level {each['level']}, but the outcomes are {ends}")
        if each["level"] == "order":
            listed = [Counter(r.content for r in step.resolvents) for step in (left, right)]
            self._state(listed[0] == listed[1], f"{where}: level order, but the resolvents differ")
        if each["level"] == "tolerance":
            listed = [[r.content for r in step.resolvents] for step in (left, right)]
            self._state(listed[0] == listed[1], f"{where}: level tolerance, but the resolvents differ")
        self._check_proof(where, each, left, right)
        if self.pair.has_lockstep and each["stage"] in ("recycle", "advance"):
            # It is about the free run, whose steps lockstep does not compare.
            return
        is_confirmed = check_evidence(each, SeenStep(self.pair, place), left, right)
        if is_confirmed is None:
            self.not_checked.append(f"evidence: {re.sub(r'[0-9,.]+', 'N', each['evidence'])}")
        else:
            self._state(is_confirmed, f"{where}: {each['evidence']}")

    def _check_proof(self, where: str, each: dict[str, Any], left: Step, right: Step) -> None:
        if each["kind"] not in ("proof_lost", "false_proof"):
            return
        has = [step.has_true or step.outcome == PROVED for step in (left, right)]
        wanted = [True, False] if each["kind"] == "proof_lost" else [False, True]
        self._state(has == wanted, f"{where}: proofs on the expected and the actual side: {has}")

    def _check_drawn(self) -> None:
        """State what the report says about the candidates of each query and side that only one side drew."""
        groups: dict[tuple[int, int], tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
        for k, rows in enumerate((self.pair.missing, self.pair.extra)):
            for row in rows:
                query, side, atom = self.pair.sides[k].candidates[row]
                groups[query, side][k].append(atom)
        facts = self.pair.program.index if self.pair.program else {}
        sides = {"head": 0, "tail": 1}
        for each in self.report["divergences"]:
            if each["stage"] == "corrupt" and " drawn instead of " in each["evidence"]:
                missing, extra = groups[each["query"], sides.get(each["side"], 2)]
                is_confirmed = check_drawn(each["evidence"], missing, extra, facts)
                self._state(
                    bool(is_confirmed), f"{each['atom']}: {each['evidence']}, but {len(extra)} for {len(missing)}"
                )

    def _check_notes(self) -> None:
        """State the counts of candidates proved, and of short rankings."""
        for note in self.report["notes"]:
            if found := re.search(
                r"(\d[\d,]*) of (\d[\d,]*) candidates? proved expected, (\d[\d,]*) of (\d[\d,]*) actual", note
            ):
                stated = [int(text.replace(",", "")) for text in found.groups()]
                outcomes = [side.column("candidates/outcome") or [] for side in self.pair.sides]
                counts = [n for each in outcomes for n in (each.count(PROVED), len(each))]
                self._state(stated == counts, f"{note}, but {counts}")
            if found := re.match(r"all .*?([\d,]+) (expected|actual) (?:ones,|steps) fit a dialect", note):
                side = self.pair.sides[found[2] == "actual"]
                num = sum(map(len, side.steps))
                self._state(int(found[1].replace(",", "")) == num, f"{note}, but there are {num}")
            if found := re.match(r"(\d[\d,]*) of (\d[\d,]*) rankings? ha\w+ (\d+) candidates? or fewer", note):
                stated = [int(text.replace(",", "")) for text in found.groups()]
                ranked = self.pair.sides[0].columns["rankings/num_ranked"]
                counts = [int((ranked <= stated[2]).sum()), len(ranked)]
                self._state(stated[:2] == counts, f"{note}, but {counts}")

    # Causes

    def _members(self, number: int) -> list[dict[str, Any]]:
        return [each for each in self.report["divergences"] if number in (each["cause"], each["other_cause"])]

    def _check_cause(self, number: int, cause: dict[str, Any]) -> None:
        where = f"cause {number + 1} ({cause['stage']} {cause['kind']})"
        members = [each for each in self.report["divergences"] if each["cause"] == number]
        is_whole = not any("are listed" in note for note in self.report["notes"])
        if is_whole:
            self._state(
                cause["num_divergences"] == len(members),
                f"{where}: {cause['num_divergences']} divergences, not {len(members)}",
            )
            candidates = {(each["expected"] == NO_CANDIDATE, each["candidate"]) for each in members}
            self._state(
                cause["num_candidates"] == len(candidates),
                f"{where}: {cause['num_candidates']} candidates, not {len(candidates)}",
            )
            queries = {each["query"] for each in members}
            self._state(
                cause["num_queries"] == len(queries), f"{where}: {cause['num_queries']} queries, not {len(queries)}"
            )
            later = sum(each["later_steps"] for each in members)
            self._state(cause["num_later"] == later, f"{where}: {cause['num_later']} later steps, not {later}")
        first = self.report["divergences"][cause["first"]]
        self._state(first["cause"] == number, f"{where}: its first divergence belongs to cause {first['cause'] + 1}")
        if cause["when"]:
            self._check_condition(where, number, cause)
        elif cause["stage"] == "rank" and cause["condition"] and self.pair.knows("rankings/optimistic"):
            for pattern, is_confirmed in check_patterns(cause["condition"], self.pair):
                if is_confirmed is None:
                    self.not_checked.append(f"ranks: {re.sub(r'[0-9,.]+', 'N', pattern)}")
                else:
                    self._state(is_confirmed, f"{where}: {pattern}")

    def _check_condition(self, where: str, number: int, cause: dict[str, Any]) -> None:
        when = cause["when"]
        where = f"{where}, {when['sentence']!r}"
        self._check_counts(where, when)
        if not when["tests"] or (self.report["lockstep"] and not self.pair.has_lockstep):
            return
        condition = self._read_condition(where, when)
        if condition is None:
            return
        if when["experiment"]:
            self._check_experiment(where, cause, condition)
        scope = "of the selected predicate " in when["sentence"]
        self._check_cases(where, number, cause, condition, scope=scope)
        if not scope:
            self._check_boundary(where, number, cause, condition)
        alike = re.findall(r"on these the same as (.*?)(?:; |$)", when["sentence"])
        for text in (*alike, *(when["others"] if when["is_exact"] else ())):
            words = re.sub(r"^\w+ (?:of the selected predicate |with a tie and )?", "", text)
            other = read_conjunction(words, when["unit"], self.pair.numbers.declared)
            if other is None:
                self.not_checked.append(words)
            elif other == ():
                self.contradicted.append(f"{where}: no phrase is {words!r}")
            else:
                self._check_cases(f"{where}, alike: {words}", number, cause, [other], scope=scope)

    def _check_counts(self, where: str, when: dict[str, Any]) -> None:
        found = re.search(r": ([\d,]+) of the ([\d,]+) .+?, and ([\d,]+) of the ([\d,]+) ", when["sentence"])
        if found and when["tests"]:
            stated = [int(text.replace(",", "")) for text in found.groups()]
            data = [when[name] for name in ("wrong_inside", "num_wrong", "right_inside", "num_right")]
            self._state(stated == data, f"{where}: the sentence counts {stated}, the data {data}")
        if when["is_exact"] and when["tests"]:
            exact = when["wrong_inside"] == when["num_wrong"] and not when["right_inside"]
            self._state(
                exact, f"{where}: exact, but {when['wrong_inside']} of {when['num_wrong']} and {when['right_inside']}"
            )

    def _read_condition(self, where: str, when: dict[str, Any]) -> list[tuple[Value, ...]] | None:
        """Return the tests of each part of a condition; None if the columns do not hold what a test needs."""
        tests = []
        for words in when["tests"]:
            try:
                value = read_phrase(words, self.pair.numbers.declared)
            except ValueError as error:
                self.contradicted.append(f"{where}: {error}")
                return None
            if value is None:
                self.not_checked.append(words)
                return None
            tests.append(value)
        if when["num_conditions"] == 1:
            return [tuple(tests)]
        parts = when["sentence"].partition(", or the ")
        split = next(
            (
                n
                for n in range(1, len(tests))
                if all(w in parts[0] for w in when["tests"][:n]) and all(w in parts[2] for w in when["tests"][n:])
            ),
            None,
        )
        if split is None:
            self.not_checked.append("two conditions in one sentence")
            return None
        return [tuple(tests[:split]), tuple(tests[split:])]

    def _check_cases(
        self, where: str, number: int, cause: dict[str, Any], condition: list[tuple[Value, ...]], *, scope: bool
    ) -> None:
        """State whether a condition tells the instances that went wrong from the others."""
        when = cause["when"]
        counts: Counter[tuple[bool, bool]] = Counter()
        examples: dict[tuple[bool, bool], str] = {}
        wrong = []
        try:
            for instance, is_wrong in self._collect(number, cause):
                if scope and instance.head[0] != instance.seen.selected[0]:
                    continue
                holds = any(all(test(instance) for test in tests) for tests in condition)
                counts[holds, is_wrong] += 1
                examples.setdefault((holds, is_wrong), self._describe(instance))
                wrong += [instance] * is_wrong
        except Unknown:
            self.not_checked.append(f"a column that is unknown: {when['tests']}")
            return
        if not wrong:
            self.not_checked.append(f"instances of {cause['stage']} ({when['unit']}) that only stages show")
            return
        if when["is_exact"] or when["is_partial"]:
            inside, outside = examples.get((True, False)), examples.get((False, True))
            self._state(not counts[True, False], f"{where}: {counts[True, False]} right inside, {inside}")
            self._state(not counts[False, True], f"{where}: {counts[False, True]} wrong outside, {outside}")
        else:
            both, num_inside = counts[True, True], counts[True, True] + counts[True, False]
            shares = both / max(1, num_inside), both / len(wrong)
            self._state(min(shares) >= LEAST_SHARE, f"{where}: mostly, but precision and recall are {shares}")
        self._check_common(where, when["sentence"], wrong)

    def _check_boundary(
        self, where: str, number: int, cause: dict[str, Any], condition: list[tuple[Value, ...]]
    ) -> None:
        """State whether no instance that meets the other tests lies between the values that leave a bound open."""
        number_of = r"(-?[\d,.]+(?:e[+-]?\d+)?)"
        opened = (
            rf'the true bound of "([^"]+)" may be any from .+?: nothing between {number_of} and {number_of} was seen'
        )
        for name, *bounds in re.findall(opened, cause["when"]["sentence"]):
            value = find_value(name)
            if value is None or len(condition) > 1:
                self.not_checked.append(f"an open bound of {name}")
                continue
            low, high = (float(text.replace(",", "")) for text in bounds)
            tests = condition[0]
            # One of the tests is that of the bound.
            is_open = [True] * len(tests)
            try:
                for instance, _ in self._collect(number, cause):
                    held = [test(instance) for test in tests]
                    is_between = low < value(instance) < high
                    is_open = [o and not (is_between and all(held[:k] + held[k + 1 :])) for k, o in enumerate(is_open)]
            except Unknown:
                self.not_checked.append(f"an open bound of {name}")
                continue
            self._state(any(is_open), f"{where}: values between {low} and {high} were seen")

    def _check_common(self, where: str, sentence: str, wrong: list[Instance]) -> None:
        """State whether all wrong instances have in common what the sentence says."""
        keys = {
            "by one clause": lambda i: i.clause,
            "of one query": lambda i: i.candidate[0],
            "with one selected atom": lambda i: i.seen.goal[:1] if i.step is not None else i.candidate,
        }
        for words, key in keys.items():
            if f"all of them {words}" in sentence:
                num = len({key(each) for each in wrong})
                self._state(num == 1, f"{where}: {words}, but there are {num}")

    # Experiments

    def _check_experiment(self, where: str, cause: dict[str, Any], condition: list[tuple[Value, ...]]) -> None:
        """State the figures of an experiment, and that its two problems go as the report says if they are tried again."""
        when = cause["when"]
        tried = when["experiment"]
        num, num_tried = tried["num_predicted"], tried["num_tried"]
        if tried["verdict"] != "confirmed":
            untested = f"not tested by experiment: {tried['reason']}" in when["sentence"]
            self._state(untested and "confirmed by" not in when["sentence"], f"{where}: no experiment confirms it")
            return
        pair = "wrong at {}, and right at {}".format(*tried["pair"])
        words = f"confirmed by experiment, {num:,} of {num_tried:,} as predicted: {pair}"
        self._state(words in when["sentence"], f"{where}: the experiment is {words}")
        least = num_tried if when["is_exact"] or when["is_partial"] else LEAST_SHARE * num_tried
        self._state(least <= num <= num_tried, f"{where}: confirmed, but {num} of {num_tried}")
        reader = ProblemReader(self.pair.sides[0])
        problems = [reader.read(text) for text in tried["pair"]]
        if self.take is None or None in problems:
            self.not_checked.append(f"an experiment with {when['unit']}s")
            return
        again = Checker(self.report, *self.take(problems), self.pair.numbers)
        for row, (problem, is_wrong) in enumerate(zip(problems, (True, False), strict=True)):
            try:
                found = again._try_problem(row, problem, cause, condition)
            except Unknown:
                found = None
            if found is None:
                self.not_checked.append(f"an experiment whose {when['unit']} does not show")
                continue
            self._state(found[0] == is_wrong, f"{where}: {tried['pair'][row]} goes {'right' if is_wrong else 'wrong'}")
            self._state(found[1] == is_wrong, f"{where}: {tried['pair'][row]} meets it: {found[1]}")

    def _try_problem(
        self, row: int, problem: Problem, cause: dict[str, Any], condition: list[tuple[Value, ...]]
    ) -> tuple[bool, bool] | None:
        """Return whether a problem goes wrong, and whether a condition holds for it; None if the step does not show it."""
        step = SeenStep(self.pair, Place(row, row, 0))
        step.visited = problem.visited
        if problem.clause is None:
            left, right = (self.pair.step(side, step.place) for side in (0, 1))
            cases = [Case(Instance(self.pair, row, step), self.pair.differ(left, right))]
        else:
            every = self._collect_parts(step, True, cause["when"]["unit"], cause)
            cases = [case for case in every if case.instance.clause == problem.clause]
        if not cases:
            return None
        instance, is_wrong = cases[0]
        return is_wrong, any(all(test(instance) for test in tests) for tests in condition)

    def _describe(self, instance: Instance) -> str:
        place = f"candidate {instance.row}"
        if instance.step is not None:
            place += f", step {instance.step.place.number}"
        return place + (f", clause {instance.clause}" if instance.clause else "")

    # Instances

    def _collect(self, number: int, cause: dict[str, Any]) -> Iterator[Case]:
        """Yield the instances of a cause whose being wrong or right shows in the columns."""
        unit, stage = cause["when"]["unit"], cause["stage"]
        members = self._members(number)
        if unit == "candidate":
            yield from self._collect_candidates(members, stage, cause["when"]["sentence"])
            return
        own, shared = [], []
        for each in members:
            place = self._place(each)
            if place is None:
                continue
            step = self._start(place)
            if step is not None:
                (own if each["other_cause"] < 0 else shared).append(step)
        agreeing = [SeenStep(self.pair, place) for place in self.pair.agreeing if place not in {s.place for s in own}]
        if unit == "step":
            wanted = {"proof_lost": True, "false_proof": False}.get(cause["kind"])
            yield from (Case(Instance(self.pair, s.place.expected, s), True) for s in (*own, *shared))
            for s in agreeing:
                if wanted is None or s.expected.has_true == wanted:
                    yield Case(Instance(self.pair, s.place.expected, s), False)
            return
        for is_own, steps in ((True, own), (False, agreeing)):
            for step in steps:
                yield from self._collect_parts(step, is_own, unit, cause)

    def _start(self, place: Place) -> SeenStep | None:
        """Return the step of a divergence; the one before it if the two sides start it from different goals."""
        left, right = (self.pair.step(side, place) for side in (0, 1))
        if left is not None and (right is None or left.goal == right.goal):
            return SeenStep(self.pair, place)
        before = place._replace(number=place.number - 1)
        return SeenStep(self.pair, before) if before.number >= 0 and self.pair.step(0, before) else None

    def _collect_candidates(self, members: list[dict[str, Any]], stage: str, sentence: str) -> Iterator[Case]:
        if stage == "corrupt":
            side = int(" extra: " in sentence)
            only = {*(self.pair.missing, self.pair.extra)[side]}
            for row in range(len(self.pair.sides[side].candidates)):
                yield Case(Instance(self.pair, row, side=side), row in only)
            return
        wrong = {each["candidate"] for each in members if each["expected"] != NO_CANDIDATE}
        others = {each["candidate"] for each in self.report["divergences"]}
        for row in range(len(self.pair.sides[0].candidates)):
            if row in wrong or row not in others:
                yield Case(Instance(self.pair, row), row in wrong)

    def _collect_parts(self, step: SeenStep, is_own: bool, unit: str, cause: dict[str, Any]) -> Iterator[Case]:
        """Yield the clauses or resolvents of a step."""
        actual = self.pair.step(1, step.place)
        if actual is None:
            return
        if unit in KINDS:
            labels = self._label_clauses(step, actual, is_own, cause["when"], KINDS[unit])
        elif cause["stage"] in ("revisit", "limit"):
            labels = self._label_dropped(step, actual, is_own)
        else:
            labels = self._label_changed(step, actual, is_own, cause["stage"])
        for clause, is_wrong in labels:
            yield Case(Instance(self.pair, step.place.expected, step, clause), is_wrong)

    def _label_clauses(
        self, step: SeenStep, actual: Step, is_own: bool, when: dict[str, Any], kind: int
    ) -> Iterator[tuple[Clause, bool]]:
        """Yield the clauses that are missing or extra in the actual list, and the others that show."""
        left, right = ({c for c in step.clauses_of(side) if c[0] == kind} for side in (step.expected, actual))
        if f"are {'missing'}" in when["sentence"]:
            yield from ((clause, False) for clause in right)
            if is_own and not actual.has_true and not any(actual.dropped or (0, 0)):
                yield from ((clause, True) for clause in left - right)
            return
        extra = {clause for clause in right - left if clause not in step.matched}
        yield from ((clause, True) for clause in extra if is_own)
        yield from ((clause, False) for clause in right - extra)
        is_open = not actual.has_true and not any(actual.dropped or (0, 0))
        if is_open and self.pair.program is not None:
            program, predicate = self.pair.program, step.selected[0]
            every = program.facts_of[predicate] if kind == FACT else program.rules_of[predicate]
            hidden = self._may_be_hidden(step)
            for index in every:
                if (kind, index) not in right and not hidden:
                    yield (kind, index), False

    def _may_be_hidden(self, step: SeenStep) -> bool:
        """Return whether a filter may have dropped the resolvents of further clauses unseen."""
        return len(step.visited) > 1 or len(step.goal) == 1

    def _label_dropped(self, step: SeenStep, actual: Step, is_own: bool) -> Iterator[tuple[Clause, bool]]:
        """Yield the resolvents of a step: wrong if only one side dropped them."""
        most = self.pair.limits.get("max_resolvents")
        sides = step.expected, actual
        if any(side.has_true for side in sides):
            return
        left, right = (step.clauses_of(side) for side in sides)
        # In a full list, a resolvent may have lost its place to another one.
        is_full = most is not None and max(len(left), len(right)) >= most and not (left <= right or right <= left)
        for clause in step.made:
            is_wrong = (clause in left) != (clause in right)
            if is_full and (is_wrong or clause not in left):
                continue
            if is_own or not is_wrong:
                yield clause, is_wrong

    def _label_changed(self, step: SeenStep, actual: Step, is_own: bool, stage: str) -> Iterator[tuple[Clause, bool]]:
        """Yield the resolvents that both sides made with the same clause: wrong if they differ."""
        if not self.pair.has_origins:
            raise Unknown
        left = {r.clause: r for r in step.expected.resolvents if r.clause}
        for other in actual.resolvents:
            clause, made = other.clause, step.made.get(other.clause)
            if made is None or (stage == "score" and clause not in left):
                continue
            if stage == "score":
                is_wrong = self.pair.has_other_score(left[clause], other)
            else:
                # A resolvent that the expected side made may be missing from its list, behind a proof.
                wanted = (ORDINARY if made.kept else TRUE), made.kept
                is_wrong = other.content != (left[clause].content if clause in left else wanted)
            if is_own or not is_wrong:
                yield clause, is_wrong

    # Shares

    def _check_shares(self) -> None:
        stated = self.report["attribution"]
        if not stated:
            return
        total = sum(share["share"] for share in stated["shares"])
        self._state(
            math.isclose(total, stated["expected"] - stated["actual"], abs_tol=1e-9 + 4 * stated["error"]),
            f"the shares add up to {total}",
        )
        game = Repairs(self.report, self.pair)
        num = len(stated["shares"])
        if not game.is_understood() or num > MOST_SUBSETS:
            self.not_checked.append("shares of ranks by an unknown rule, or of too many causes")
            return
        self._state(
            math.isclose(game.value(frozenset()), stated["actual"], abs_tol=1e-9),
            f"the actual metric is {stated['actual']}, not {game.value(frozenset())}",
        )
        players = [share["cause"] for share in stated["shares"]]
        shares = shapley(players, game.value)
        for share in stated["shares"]:
            name, found = share["cause"] + 1, shares[share["cause"]]
            near = math.isclose(share["share"], found, abs_tol=1e-9 + 6 * stated["error"])
            self._state(near, f"cause {name} explains {share['share']}, not {found}")
            repaired = game.value(frozenset([share["cause"]]))
            self._state(
                math.isclose(share["repaired"], repaired, abs_tol=1e-9),
                f"cause {name} repaired gives {share['repaired']}, not {repaired}",
            )


def shapley(players: list[int], value: Any) -> dict[int, float]:
    """Return the mean gain of each player over the orders in which the players may come."""
    shares = dict.fromkeys(players, 0.0)
    num = len(players)
    for size in range(num):
        weight = 1 / (num * math.comb(num - 1, size))
        for others in combinations(players, size):
            for each in set(players) - {*others}:
                shares[each] += weight * (value(frozenset((*others, each))) - value(frozenset(others)))
    return shares


class Repairs:
    """The mean reciprocal rank if the candidates of some causes are taken from the expected run."""

    def __init__(self, report: dict[str, Any], pair: Pair) -> None:
        self.pair = pair
        causes = report["causes"] or []
        self.of_rank = frozenset(n for n, cause in enumerate(causes) if cause["stage"] == "rank")
        self.tolerance = (report["run"] or {}).get("rank_tolerance")
        self.of: dict[tuple[bool, int], frozenset[int]] = {}
        for each in reversed(report["divergences"]):
            if each["stage"] != "rank":
                own = frozenset(n for n in (each["cause"], each["other_cause"]) if n >= 0)
                self.of[each["expected"] == NO_CANDIDATE, each["candidate"]] = own
        self.known: dict[frozenset[int], float] = {}

    def is_understood(self) -> bool:
        """Return whether ranking the candidates by the default rule gives the recorded ranks of both sides."""
        if (
            self.tolerance is None
            or self.of_rank
            or not self.pair.knows("rankings/optimistic", "candidates/log_probability")
        ):
            return False
        return all(self._ranks_as_recorded(side) for side in self.pair.sides)

    def _ranks_as_recorded(self, side: Recorded) -> bool:
        rows = [(identity, *self._score(side, row)) for row, identity in enumerate(side.candidates)]
        found = self._rank(rows)
        keys = zip(side.columns["rankings/query"].tolist(), side.columns["rankings/side"].tolist(), strict=True)
        ranks = zip(
            side.columns["rankings/optimistic"].tolist(), side.columns["rankings/pessimistic"].tolist(), strict=True
        )
        return found == dict(zip(keys, ranks, strict=True))

    def _score(self, side: Recorded, row: int) -> tuple[float, int]:
        outcome, total = (side.columns[f"candidates/{name}"][row] for name in ("outcome", "log_probability"))
        return float(total) - 100.0 * (outcome != PROVED), row

    def _rank(self, rows: Iterable[tuple[Any, float, int]]) -> dict[tuple[int, int], tuple[float, float]]:
        """Return the optimistic and the pessimistic rank of the first candidate of each query and side."""
        groups: dict[tuple[int, int], dict[Any, float]] = defaultdict(dict)
        for (query, of_side, atom), score, _ in rows:
            groups[query, of_side].setdefault(atom, score)
        found = {}
        for key, scores in groups.items():
            own, *others = scores.values()
            gaps = [score - own for score in others]
            above = sum(gap > 0 if not self.tolerance else gap >= self.tolerance for gap in gaps)
            tied = sum(gap == 0 if not self.tolerance else abs(gap) < self.tolerance for gap in gaps)
            found[key] = 1.0 + above, 1.0 + above + tied
        return found

    def value(self, repaired: frozenset[int]) -> float:
        """Return the metric with some causes repaired; -1 stands for candidates without a cause."""
        if repaired not in self.known:
            sides, rows = self.pair.sides, []
            for row, identity in enumerate(sides[0].candidates):
                own = self.of.get((False, row)) or frozenset([-1])
                if own <= repaired:
                    rows.append((identity, *self._score(sides[0], row)))
                elif row in self.pair.actual_of:
                    rows.append((identity, *self._score(sides[1], self.pair.actual_of[row])))
            rows += [
                (sides[1].candidates[row], *self._score(sides[1], row))
                for row in self.pair.extra
                if not (self.of.get((True, row)) or frozenset([-1])) <= repaired
            ]
            ranks = self._rank(rows).values()
            self.known[repaired] = math.fsum(2 / (a + b) for a, b in ranks) / len(ranks)
        return self.known[repaired]


def read_conjunction(words: str, unit: str, declared: Iterable[str] = ()) -> tuple[Value, ...] | None:
    """Return the tests of a text of phrases joined by "and"; () if it has no meaning, None if it is not checked."""
    prefixes = ["", "of a clause ", "of a rule ", "of candidates "]
    options = [prefix + words for prefix in prefixes] + [re.sub("^without ", "of no rule with ", words)] * (
        unit == "rule"
    )
    for text in options:
        try:
            value = read_phrase(text, declared)
        except ValueError:
            continue
        return None if value is None else (value,)
    for place in [found.start() for found in re.finditer(" and ", words)]:
        parts = [read_conjunction(part, unit, declared) for part in (words[:place], words[place + 5 :])]
        if () in parts:
            continue
        return None if None in parts else (*parts[0], *parts[1])
    return ()


def compute_metrics(of_side: Any, optimistic: Any, pessimistic: Any) -> dict[str, float]:
    """Return the mean reciprocal rank and the hits of each side, for each kind of rank."""
    found = {}
    kinds = {"optimistic": optimistic, "pessimistic": pessimistic, "realistic": (optimistic + pessimistic) / 2}
    for name, rows in (("head", of_side == 0), ("tail", of_side == 1), ("both", of_side >= 0)):
        for kind, ranks in kinds.items() if rows.any() else ():
            found[f"{name}.{kind}.mean_reciprocal_rank"] = float(np.mean(1 / ranks[rows]))
            for k in (1, 3, 10):
                found[f"{name}.{kind}.hits_at_{k}"] = float(np.mean(ranks[rows] <= k))
    return found


def check_saved(folder: Path, numbers: Numbers = NO_NUMBERS, take: Take | None = None) -> Checked:
    """Check a saved run: its report against its two traces. numbers, take: those of `Checker.of`."""
    return Checker.of(json.loads((folder / "report.json").read_text("utf-8")), folder, numbers, take).check()


def main(folders: list[str]) -> int:
    """Print what the columns of each saved run contradict, and what was not checked."""
    num = 0
    for folder in map(Path, folders):
        found = check_saved(folder)
        num += len(found.contradicted)
        sys.stdout.write(f"{folder.name}: {found.num_confirmed} confirmed, {len(found.contradicted)} contradicted\n")
        sys.stdout.writelines(f"  CONTRADICTED {each}\n" for each in found.contradicted)
        sys.stdout.writelines(f"  not checked: {each} ({n}x)\n" for each, n in Counter(found.not_checked).items())
    return int(num > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
