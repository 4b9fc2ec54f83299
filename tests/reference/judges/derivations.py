"""Whole derivations of the reference, judged by SWI-Prolog."""

import hashlib
import json
import math
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from judges.cases import Case, NamedAtom, Term
from judges.scores import Scorer, draw_weights

import kgreference
from kgreference.two_tower import TwoTower

SCRIPT: Final = Path(__file__).with_name("derivations.pl")
MOST_PROGRAMS: Final = 500
"""Programs of one Prolog process."""

KINDS: Final = ("GOAL", "TRUE", "FALSE")
ORIGINS: Final = ("NONE", "RULE", "FACT")
OUTCOMES: Final = ("OPEN", "PROVED", "FAILED", "DEPTH_LIMIT")
FIELDS: Final = (
    "goal",
    "selected",
    "matched_rules",
    "matched_facts",
    "after_resolve",
    "after_rename",
    "after_revisit",
    "after_close",
    "after_limit",
    "dropped_atoms",
    "dropped_resolvents",
    "scores",
    "choice",
    "log_probability",
    "depth",
    "outcome",
)
"""The parts of Prolog's answer for each step, in its order."""

Answer = Any
"""Parsed JSON."""


def has_prolog() -> bool:
    """Return whether SWI-Prolog is installed."""
    return shutil.which("swipl") is not None


def ask(requests: Sequence[str], kept: Path | None = None) -> list[Answer]:
    """Return Prolog's answers, one for each request; those to the same requests are kept in a folder, if there is one."""
    text = "".join(f"{request}.\n" for request in requests)
    digest = hashlib.sha256(SCRIPT.read_bytes() + text.encode()).hexdigest()
    file = kept / f"{digest[:24]}.json" if kept else None
    if file and file.exists():
        answers = file.read_text()
    else:
        command = ["swipl", "-q", "-g", "main", "-t", "halt", str(SCRIPT)]
        answers = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
        if file:
            part = file.with_suffix(".part")
            part.write_text(answers)
            part.rename(file)
    lines = answers.splitlines()
    assert len(lines) == len(requests), "Prolog did not answer everything"
    return [json.loads(line) for line in lines]


def judge_derivations(cases: Sequence[Case], seen: Counter[str], kept: Path | None = None) -> list[str]:
    """Return the first difference of each case; count in ``seen`` what occurred, by Prolog's answers alone."""
    wrong = []
    for start in range(0, len(cases), MOST_PROGRAMS):
        some = cases[start : start + MOST_PROGRAMS]
        answers = ask([render_request(case, _questions(case)) for case in some], kept)
        for case, answer in zip(some, answers, strict=True):
            assert answer is not None, f"Prolog cannot answer {case}"
            _count(case, answer, seen)
            found = _guarded(lambda case=case, answer=answer: _judge_case(case, answer))
            wrong += [f"{case}: {found}"] * bool(found)
    return wrong


def judge_choices(cases: Sequence[Case], seen: Counter[str], kept: Path | None = None) -> list[str]:
    """Return the first difference of each case under a random network, whose scores a `Scorer` computes again."""
    wrong: list[str] = []
    requests, asked = [], []
    for number, case in enumerate(cases):
        weights = draw_weights(number, len(case.facts))
        try:
            program = build_program(case)
            policy = TwoTower(weights, cache_size=2 if number % 3 else 100)
            queries = encode_queries(program, case)
            if number % 2:
                found = kgreference.derive_together(program, limits_of(case), policy, queries)
            else:
                found = [derive(program, case, policy, query) for query in queries]
        except Exception as error:
            wrong.append(f"{case}: {error!r}")
            continue
        questions = [
            f"derive({i}, [{', '.join(str(step.choice) for step in each.steps)}])" for i, each in enumerate(found)
        ]
        requests.append(render_request(case, questions))
        asked.append((case, Scorer(weights), found))
    for start in range(0, len(requests), MOST_PROGRAMS):
        answers = ask(requests[start : start + MOST_PROGRAMS], kept)
        for (case, scorer, found), answer in zip(asked[start : start + MOST_PROGRAMS], answers, strict=True):
            for derivation, expected in zip(found, answer[4], strict=True):
                message = _guarded(
                    lambda derivation=derivation, expected=expected, scorer=scorer: _judge_derivation(
                        derivation, expected, scorer, seen
                    )
                )
                wrong += [f"{case}: {message}"] * bool(message)
    return wrong


def build_program(case: Case) -> kgreference.Program:
    """Build the reference's program of a case, with memos so small that they forget."""
    rules = [(_named(head), [_named(atom) for atom in body]) for head, body in case.rules]
    program = kgreference.Program.from_names(
        [_named(fact) for fact in case.facts],
        rules,
        [_named(query) for query in case.queries],
        [f"c{label}" for label in case.others],
    )
    if len(case.rules) % 2:
        for memo in vars(program).values():
            if hasattr(memo, "remember"):
                memo._most = 8
    return program


def encode_queries(program: kgreference.Program, case: Case) -> list[kgreference.Atom]:
    """Return the queries by id."""
    return [program.encode(_named(query)) for query in case.queries]


def limits_of(case: Case) -> kgreference.Limits:
    """Return the limits of a case in the reference's terms."""
    return kgreference.Limits() if case.limits is None else kgreference.Limits(*case.limits)


def derive(
    program: kgreference.Program, case: Case, policy: kgreference.Policy, query: kgreference.Atom
) -> kgreference.Derivation:
    """Return the reference's derivation of a query."""
    return kgreference.derive(program, limits_of(case), policy, query)


def _questions(case: Case) -> list[str]:
    questions = [f"derive({i}, shortest)" for i in range(len(case.queries))]
    for query, goal, visited, depth in case.positions:
        questions.append(f"step({query}, {_render_all(goal)}, [{', '.join(map(_render_all, visited))}], {depth})")
    return questions


def render_request(case: Case, questions: Iterable[str]) -> str:
    rules = ", ".join(f"r({_render(head)}, {_render_all(body)})" for head, body in case.rules)
    limits = "default"
    if case.limits is not None:
        max_depth, max_atoms, max_resolvents, is_excluded = case.limits
        limits = f"limits({max_depth}, {max_atoms}, {max_resolvents}, {'true' if is_excluded else 'false'})"
    return (
        f"program({_render_all(case.facts)}, [{rules}], {_render_all(case.queries)}, {list(case.others)}, {limits}, "
        f"[{', '.join(questions)}])"
    )


def _render(atom: NamedAtom) -> str:
    first, second = (f"v({term})" if isinstance(term, str) else str(term) for term in atom[1:])
    return f"a({atom[0]}, {first}, {second})"


def _render_all(atoms: Sequence[NamedAtom]) -> str:
    return f"[{', '.join(map(_render, atoms))}]"


def _named(atom: NamedAtom) -> kgreference.NamedAtom:
    def name(term: Term) -> str | kgreference.Variable:
        return kgreference.Variable(term) if isinstance(term, str) else f"c{term}"

    return f"p{atom[0]}", name(atom[1]), name(atom[2])


def _guarded(judge: Any) -> str:
    try:
        return judge()
    except Exception as error:
        return f"the reference raised {error!r}"


def _judge_case(case: Case, answer: Answer) -> str:
    predicates, constants, facts, queries, answers = answer
    program = build_program(case)
    if [program.predicates, program.constants] != [
        tuple(f"p{label}" for label in predicates),
        tuple(f"c{label}" for label in constants),
    ]:
        return f"symbols: expected {predicates} {constants}, found {program.predicates} {program.constants}"
    if facts != [list(fact) for fact in program.facts]:
        return f"facts: expected {facts}, found {program.facts}"
    encoded = encode_queries(program, case)
    if queries != [list(query) for query in encoded]:
        return f"queries: expected {queries}, found {encoded}"
    named = [program.decode(fact) for fact in program.facts]
    if named != [(f"p{predicates[p]}", f"c{constants[x]}", f"c{constants[y]}") for p, x, y in facts]:
        return f"names: found {named}"
    policy = kgreference.Shortest()
    for query, expected in zip(encoded, answers, strict=False):
        message = _judge_derivation(derive(program, case, policy, query), expected)
        if message:
            return message
    for position, expected in zip(case.positions, answers[len(encoded) :], strict=True):
        goal, *visited = (_encode_goal(each, predicates, constants) for each in (position.goal, *position.visited))
        query = encoded[position.query]
        ours, limits = kgreference.OURS, limits_of(case)
        excluded = kgreference.find_excluded(ours, limits, query, is_positive=True)
        given = ours, program, limits, policy, excluded, goal, position.depth, frozenset(visited)
        step = kgreference.take_step(kgreference.Situation(*given))
        message = _judge_step(step, expected, None)
        if message:
            return f"from {position}: {message}"
    return ""


def _encode_goal(goal: Sequence[NamedAtom], predicates: list[int], constants: list[int]) -> kgreference.Goal:
    numbers: dict[Term, int] = {}

    def term(each: Term) -> int:
        return numbers.setdefault(each, -1 - len(numbers)) if isinstance(each, str) else constants.index(each)

    return tuple(kgreference.Atom(predicates.index(p), term(first), term(second)) for p, first, second in goal)


def _judge_derivation(
    derivation: kgreference.Derivation, expected: Answer, scorer: Scorer | None = None, seen: Counter[str] | None = None
) -> str:
    steps, outcome, is_limited, log_probability = expected
    terms = []
    for number, (step, expected_step) in enumerate(zip(derivation.steps, steps, strict=False)):
        message = _judge_step(step, expected_step, scorer)
        if message:
            return f"{derivation.query}, step {number}: {message}"
        terms.append(step.log_probability)
        if seen is not None:
            seen["scored"] += 1
            seen["a choice by the network"] += len(step.scores) > 1
    if len(derivation.steps) != len(steps):
        return f"{derivation.query}: expected {len(steps)} steps, found {len(derivation.steps)}"
    if derivation.outcome.name != OUTCOMES[outcome]:
        return f"{derivation.query}: expected {OUTCOMES[outcome]}, found {derivation.outcome.name}"
    if derivation.is_limited is not bool(is_limited):
        return f"{derivation.query}: is_limited is {derivation.is_limited}"
    total = log_probability if scorer is None else math.fsum(terms)
    if not math.isclose(derivation.log_probability, total, rel_tol=1e-12, abs_tol=1e-12):
        return f"{derivation.query}: expected log-probability {total}, found {derivation.log_probability}"
    return ""


def _judge_step(step: kgreference.Step, expected: Answer, scorer: Scorer | None) -> str:
    wanted = dict(zip(FIELDS, expected, strict=True))
    for name in FIELDS:
        if name in ("scores", "log_probability") and scorer is not None:
            continue
        value, want = getattr(step, name), wanted[name]
        if name.startswith("after_"):
            value = [show_resolvent(each, is_canonical=name != "after_resolve") for each in value]
        elif name == "goal":
            value = [list(atom) for atom in value]
        elif name == "selected":
            value = list(value)
        elif name == "scores":
            value = [score * 64 for score in value]
        elif name == "log_probability":
            value = want if math.isclose(value, want, rel_tol=1e-12, abs_tol=1e-12) else value
        elif name == "outcome":
            value, want = value.name, OUTCOMES[want] if want >= 0 else "no step"
        if name.startswith("after_"):
            want = [[KINDS[kind], ORIGINS[by], origin, atoms] for kind, by, origin, atoms in want]
        if value != want:
            return f"{name}: expected {want}, found {value}"
    pruned = [show_resolvent(each, is_canonical=False) for each in step.after_prune]
    if pruned != [show_resolvent(each, is_canonical=True) for each in step.after_rename]:
        return f"after_prune: expected {wanted['after_rename']}, found {pruned}"
    if show_resolvent(step.chosen, is_canonical=True) != show_resolvent(
        step.after_limit[step.choice], is_canonical=True
    ):
        return f"chosen: found {step.chosen}"
    return scorer.judge(wanted["goal"], [each[3] for each in wanted["after_limit"]], step) if scorer else ""


def show_resolvent(resolvent: kgreference.Resolvent, *, is_canonical: bool) -> list[Any]:
    atoms = [list(atom) for atom in resolvent.atoms]
    if not is_canonical:
        numbers: dict[int, int] = {}
        atoms = [
            [p, *(term if term >= 0 else numbers.setdefault(term, -1 - len(numbers)) for term in terms)]
            for p, *terms in atoms
        ]
    return [resolvent.kind.name, resolvent.origin_kind.name, resolvent.origin, atoms]


def _count(case: Case, answer: Answer, seen: Counter[str]) -> None:
    """Count the rare conditions that occur in Prolog's answers."""
    max_depth, max_atoms, max_resolvents, _ = case.limits or (20, 6, 120, True)
    answers = answer[4][: len(case.queries)]
    for query, (steps, outcome, _, _) in zip(answer[3], answers, strict=True):
        seen[OUTCOMES[outcome]] += 1
        seen["PROVED by the last step"] += outcome == 1 and len(steps) == max_depth
        seen["twenty steps"] += len(steps) == 20
        for each in steps:
            step = dict(zip(FIELDS, each, strict=True))
            seen["steps"] += 1
            renamed, unvisited, closed = (step[f"after_{stage}"] for stage in ("rename", "revisit", "close"))
            num_true = sum(kind == 1 for kind, *_ in unvisited)
            is_goal = step["after_limit"][0][0] == 0
            seen["two TRUE"] += num_true > 1
            seen["TRUE beyond the limit"] += num_true > 0 and all(row[0] == 0 for row in unvisited[:max_resolvents])
            seen["TRUE behind a goal"] += num_true > 0 and unvisited[0][0] == 0
            seen["dropped by both limits"] += step["dropped_atoms"] > 0 and step["dropped_resolvents"] > 0
            seen["one resolvent too many"] += step["dropped_resolvents"] == 1
            seen["as many resolvents as allowed"] += is_goal and len(step["after_limit"]) == max_resolvents
            seen["all dropped"] += closed[0][0] == 0 and not is_goal
            seen["max_atoms atoms"] += is_goal and any(len(row[3]) == max_atoms for row in step["after_limit"])
            seen["max_atoms + 1 atoms"] += is_goal and any(len(row[3]) == max_atoms + 1 for row in closed)
            seen["more than 120 resolvents"] += len(closed) > 120
            seen["visited"] += len(renamed) > len(unvisited)
            seen["all visited"] += bool(renamed) and not unvisited
            seen["a tie"] += is_goal and step["scores"].count(max(step["scores"])) > 1
            seen["the query again"] += query in (atom for row in renamed for atom in row[3])
            seen["a variable twice"] += step["selected"][1] == step["selected"][2] < 0
