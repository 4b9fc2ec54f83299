"""Phrases that several renderings share."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from kgverify.codes import Code
from kgverify.comparison.exercise.exercise import ITEMS, Exercise, describe_minimum
from kgverify.comparison.modulo import MEANINGS
from kgverify.comparison.result import (
    DIGEST,
    Attribution,
    Benign,
    Cause,
    Divergence,
    Level,
    RecognisedRule,
    Share,
    SourceCode,
    Value,
    Verdict,
)
from kgverify.errors import count_of, use_words
from kgverify.escaping import make_visible
from kgverify.program.limits import MAX_ATOMS, MAX_RESOLVENTS, DeclaredLimits
from kgverify.program.outcomes import DifferenceClass, Stage
from kgverify.report.content import ReportContent
from kgverify.trace.model.header import FROM_SCORES, EngineInfo

MOST_CHARACTERS: Final = 400
"""The maximum number of characters of one text; names can have any length."""

MOST_OF_NAME: Final = 60
"""The maximum number of characters of a policy's name in the line that describes a run."""

MOST_OF_CONDITION: Final = 2_000
"""The maximum number of characters of a condition. It contains no names of predicates, but may name a user's features."""

MOST_SOURCES: Final = 20
"""The maximum number of functions whose code is shown."""

MOST_RULES: Final = 3
"""The maximum number of unused rules that are named."""
_MOST_OF_RULE: Final = 80

_LARGEST: Final = {"max_resolvents": MAX_RESOLVENTS, "max_atoms": MAX_ATOMS}
_LIMITS: Final = ("max_resolvents", "max_atoms", "max_depth")

MEAN_RANK: Final = "arithmetic_mean_rank"
"""The metric that a report shows only if ranks alone are compared."""

METRICS: Final = ("mean_reciprocal_rank", "hits_at_1", "hits_at_3", "hits_at_10")
"""The metrics that a report shows."""

SIDES: Final = ("both", "head", "tail")
"""The sides over which a report shows metrics."""


LEVEL_MEANINGS: Final = {
    Level.BITS: "numbers differ in bits, within the tolerance",
    Level.TOLERANCE: "numbers differ beyond the tolerance, and nothing else differs",
    Level.ORDER: "resolvents differ in their order or their clauses, or candidates in their process, not in content",
    Level.RENAMING: "goals, resolvents or counts differ, but the same resolvent is chosen",
    Level.CHOICE: "the difference changes the choice, not only the resolvents",
    Level.OUTCOME: "the difference changes the outcome of a candidate, not only its steps",
    Level.RANK: "the difference changes ranks, not only scores",
    Level.METRIC: "the difference changes metrics, not only ranks",
}
"""The meaning of each level, to explain its name."""


def clip(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return a stranger's text as one visible line, cut after `most` characters if it is longer by a quarter or more."""
    if len(text) < most * 5 // 4:
        return make_visible(text)
    return f"{make_visible(text[:most])}… ({len(text) - most:,} more characters)"


def value_lines(value: Value) -> list[str]:
    """Return a value of a divergence, line by line."""
    return [clip(str(each)) for each in (value if isinstance(value, list) else [value])]


def describe_engine(engine: EngineInfo) -> str:
    """Describe an engine: `compiled (eager, cpu, float32, fact-cap)`."""
    about = ", ".join(filter(None, (engine.mode, engine.device, engine.precision, *engine.faults)))
    return make_visible(f"{engine.name} ({about})" if about else engine.name)


def describe_engines(report: ReportContent) -> str:
    """Describe both engines: `reference (python, cpu, float64) against compiled (eager, cpu, float32)`."""
    return " against ".join(map(describe_engine, (report.environment.expected, report.environment.actual)))


def describe_kind(divergence: Divergence) -> str:
    """Describe a difference: `missing: 4 facts missing`, or the field if it has no class."""
    if divergence.kind is DifferenceClass.UNCLASSIFIED and not divergence.evidence:
        return f"{divergence.field} differs"
    return f"{divergence.kind.value}: {divergence.evidence}" if divergence.evidence else divergence.kind.value


def describe_difference(divergence: Divergence) -> str:
    """Describe a difference with the confidence and its code: `missing: 4 facts missing (confidence 90%) [KG101]`."""
    is_classified = divergence.kind is not DifferenceClass.UNCLASSIFIED or divergence.evidence
    confidence = f" (confidence {divergence.confidence:.0%})" if is_classified else ""
    return divergence.kind.code.mark(describe_kind(divergence) + confidence)


def describe_divergence(divergence: Divergence) -> str:
    """Describe it: `match_facts at step 1 of p(a, b) (candidate 0, query 0, head side): missing: 4 facts missing [KG101]`."""
    where = f" at step {divergence.step}" if divergence.step >= 0 else ""
    what = divergence.kind.code.mark(clip(describe_kind(divergence)))
    return make_visible(f"{divergence.stage}{where} of {clip(divergence.atom)}{describe_place(divergence)}: {what}")


def number_of_first(report: ReportContent) -> int:
    """Return the number of the first divergence, from 1."""
    # A report from elsewhere may refer to a divergence that it does not list.
    first = report.first_cause
    return report.divergences.index(first) + 1 if first is not None and first in report.divergences else 1


def describe_place(divergence: Divergence) -> str:
    """Describe the candidate, the query and the side of a divergence in brackets; empty if the kind of problem has no queries."""
    candidate, query, side = divergence.candidate, divergence.query, divergence.side
    return f" (candidate {candidate}, query {query}, {side} side)" if query >= 0 else ""


def describe_values(divergence: Divergence) -> str:
    """Describe both values, one after the other, over several lines."""
    lines = [f"goal: {clip(divergence.goal)}"] if divergence.goal else []
    for role, value in (("expected", divergence.expected), ("actual", divergence.actual)):
        listed = value_lines(value)
        if len(listed) == 1:
            lines.append(f"{role}: {listed[0]}")
        else:
            lines += [f"{role}:", *(f"  {each}" for each in listed)]
    return "\n".join(lines)


_SCORES: Final = frozenset(("resolvents.score", "candidates.log_probability"))


def describe_coverage(report: ReportContent) -> str:
    """Describe the coverage: `1,120 candidates, 2,314 steps, 6,812 resolvents, 21 fields compared`."""
    c = report.coverage
    if c.rankings:
        return f"{count_of(c.rankings, 'rank')} compared"
    counts = (c.candidates, "candidate"), (c.steps, "step"), (c.resolvents, "resolvent"), (len(c.fields), "field")
    no_scores = ", but no scores" * _SCORES.isdisjoint(c.fields)
    line = f"{', '.join(count_of(*each) for each in counts)} compared{no_scores if c.candidates else ''}"
    found = report.exercise
    if report.verdict is not Verdict.AGREE or found is None:
        return line
    waived = [ITEMS[name] for name in report.minimum if getattr(found.expected, name) is None]
    return f"{line}; not required, since unknown to both sides: {', '.join(waived)}" if waived else line


def describe_extent(report: ReportContent) -> str:
    """Describe the coverage, what was not compared, and the repetition: `1,120 candidates, ... compared; not compared: ...`."""
    c = report.coverage
    parts = (
        describe_coverage(report),
        f"{count_of(c.candidates_expected, 'candidate')} expected, {c.candidates_actual:,} actual"
        if c.candidates != max(c.candidates_expected, c.candidates_actual)
        else "",
        f"not compared: {', '.join(c.not_compared)}" if c.not_compared else "",
        describe_repetition(report),
    )
    return "; ".join(filter(None, parts))


def describe_repetition(report: ReportContent) -> str:
    """Describe the repetition: `both engines repeat themselves to the bit on 64 of 1,120`; empty if one does not."""
    d = report.determinism
    if not (d.expected and d.actual):
        return ""
    same = d.expected_within == d.actual_within
    how = (
        f" {d.expected_within}" if same else f", the expected one {d.expected_within}, the actual one {d.actual_within}"
    )
    samples = dict.fromkeys(f"{num:,}" for num in (d.expected_sample, d.actual_sample) if num is not None)
    on = f"{',' if not same else ''} on {' and '.join(samples)} of {report.coverage.candidates:,}" if samples else ""
    return f"both engines repeat themselves{how}{on}"


def describe_self_test(report: ReportContent) -> str:
    """Describe the self-tests: `a change planted in each of 21 columns was reported; kgverify doctor --self-test passed here`."""
    num = count_of(report.self_test.columns, "column") if report.self_test is not None else ""
    planted = f"a change planted in each of {num} was reported" if num else ""
    return "; ".join(filter(None, (planted, report.environment.self_test)))


def describe_benign(benign: Benign) -> str:
    """Describe the benign differences of one kind: `names of variables: 278 steps of 22 candidates [KG302]`."""
    sizes = f"{count_of(benign.num_steps, 'step')} of {count_of(benign.num_candidates, 'candidate')}"
    return Code[benign.kind.upper()].mark(f"{MEANINGS[benign.kind]}: {sizes}")


def describe_run(report: ReportContent) -> str:
    """Describe the run: `graph countries, 20 queries of test, 50 corruptions a side, seed 0, policy shortest`.

    A trace of another prover may lack its graph, or all information about its run.
    """
    run = report.run
    parts = [f"graph {clip(run.graph)}" if run.graph else "graph unknown"]
    if "split" not in run.unknown:
        queries = "queries" if "num_queries" in run.unknown else count_of(run.num_queries, "query")
        corruptions = "all corruptions" if run.num_corruptions < 0 else count_of(run.num_corruptions, "corruption")
        parts.append(f"{queries} of {clip(run.split)}")
        parts += [f"{corruptions} a side", f"seed {run.seed}"] * (not report.coverage.rankings)
    if report.coverage.rankings:
        return ", ".join(parts)
    parts += describe_choices((report.environment.expected, report.environment.actual), report.policy.name)
    return ", ".join([*parts, "lockstep"] if report.lockstep else parts)


def describe_choices(engines: Sequence[EngineInfo], policy: str) -> Iterator[str]:
    """Describe who chooses: `policy shortest`, unless all engines bring scores, and `choices by the scores of Fast`."""
    scoring = [clip(each.name, MOST_OF_NAME) for each in engines if each.mode.endswith(FROM_SCORES)]
    if len(scoring) < len(engines):
        yield f"policy {clip(policy, MOST_OF_NAME) or 'unknown'}"
    if scoring:
        yield f"choices by the scores of {' and '.join(dict.fromkeys(scoring))}"


def describe_loss(report: ReportContent) -> str:
    """Describe the loss: `0.8200 expected, 0.4700 actual: match_facts explains 0.3100 of the 0.3500 lost`; may be empty."""
    attribution = report.attribution
    if attribution is None:
        return ""
    return (
        f"{attribution.expected:.4f} expected, {attribution.actual:.4f} actual: {describe_shares(report, attribution)}"
    )


def describe_shares(report: ReportContent, attribution: Attribution, *, is_short: bool = False) -> str:
    """Describe the three largest shares of a loss: `match_facts explains 0.3100 of the 0.3500 lost, sampled, within 0.002`.

    is_short: whether causes are named by their stages only, and the metric is named
    """
    sign, size, verb = measure_loss(attribution)
    shares = sorted(attribution.shares, key=lambda share: -abs(share.share))[:3]
    parts = [
        f"{name_cause(report, share.cause, is_short=is_short)} explains {sign * share.share:.4f}"
        for share in shares
        if share.share
    ]
    explained = f"{', '.join(parts) or 'no cause explains anything'} of the {size:.4f} {'MRR ' * is_short}{verb}"
    return explained if attribution.method == "exact" else f"{explained}, sampled, within {attribution.error:.1g}"


def measure_loss(attribution: Attribution) -> tuple[int, float, str]:
    """Return the sign of the shares, the size of the loss, and `lost`; for a metric that rises, -1, the gain, and `gained`."""
    lost = attribution.expected - attribution.actual
    return (1, lost, "lost") if lost >= 0 else (-1, -lost, "gained")


OF_TRACES: Final = "no engine was asked: a repair takes the candidates of a cause from the expected trace as recorded"
"""The meaning of a repair if two traces determine how a loss is split."""


def describe_rules(report: ReportContent) -> tuple[str, ...]:
    """Describe the ranking rules of two traces, a line for each that differs: `both ranked by ...`; empty with engines."""
    rules = report.ranking_rules
    if rules is None:
        return ()
    texts = [_describe_rule(rule) for rule in (rules.expected, rules.actual)]
    if texts[0] == texts[1]:
        return (f"both {texts[0]}",)
    return tuple(f"{role} {text}" for role, text in zip(("expected", "actual"), texts, strict=True))


def _describe_rule(rule: RecognisedRule) -> str:
    parts = dict.fromkeys(part for each in rule.also for part in each.split("; ") if part not in rule.rule)
    text = "".join(
        (
            f"ranked by an unknown rule; the closest, {rule.rule}, leaves {count_of(rule.num_unexplained, 'rank')} unexplained"
            if rule.num_unexplained
            else f"ranked {rule.rule}",
            f" (other rules explain the ranks as well: {' / '.join(parts)})" if parts else "",
            "" if rule.is_recorded else ", computed, since the trace has no ranks",
            f"; not filtered: {count_of(rule.num_known_triples, 'known triple')} among the candidates"
            if rule.num_known_triples
            else "",
        )
    )
    return "; ".join((text, *rule.remarks))


def stage_order(stage: str) -> tuple[int, str]:
    """Return the sort key of a stage: first the stages in the order of a step, then unknown stages."""
    names = [each.value for each in Stage]
    return (names.index(stage) if stage in names else len(names)), stage


def cause_label(report: ReportContent, cause: int) -> str:
    """Describe a cause: `match_facts (missing)`, with its situation if it has one."""
    if not 0 <= cause < len(report.causes):
        return "rounding at near-ties"
    found = report.causes[cause]
    return make_visible(f"{found.stage} ({', '.join(filter(None, (found.kind.value, clip(found.situation))))})")


def name_cause(report: ReportContent, cause: int, *, is_short: bool = False) -> str:
    """Return the label of a cause, or only its stage, with its number if other causes have the same stage."""
    if not 0 <= cause < len(report.causes):
        return "rounding" if is_short else cause_label(report, cause)
    stages = [each.stage for each in report.causes]
    name = stages[cause] if is_short else cause_label(report, cause)
    return name if stages.count(stages[cause]) == 1 else f"#{cause + 1} {name}"


def shares_of(report: ReportContent) -> dict[int, Share]:
    """Return the share of each cause in the loss; empty if the loss was not split."""
    return {share.cause: share for share in report.attribution.shares} if report.attribution else {}


def condition_of(report: ReportContent, divergence: Divergence) -> str:
    """Return the condition of a divergence's cause; empty if it has none."""
    has_cause = 0 <= divergence.cause < len(report.causes)
    return clip(report.causes[divergence.cause].condition, MOST_OF_CONDITION) if has_cause else ""


def describe_size(cause: Cause) -> str:
    """Describe the size of a cause: `774 divergences of 380 candidates and 12 queries in all, 453 not replayed`."""
    sizes = count_of(cause.num_candidates, "candidate"), count_of(cause.num_queries, "query")
    later = f", {count_of(cause.num_later, 'later step')} not compared" if cause.num_later else ""
    assumed = f", {cause.num_assumed:,} not replayed" if cause.num_assumed else ""
    return f"{count_of(cause.num_divergences, 'divergence')} of {sizes[0]} and {sizes[1]} in all{later}{assumed}"


def describe_source(cause: Cause) -> str:
    """Describe the engine's code of the stage: `engines.py:41, Fast.expand`; empty if it is unknown."""
    return clip(f"{cause.source.file}:{cause.source.line}, {cause.source.name}") if cause.source is not None else ""


def list_sources(report: ReportContent) -> dict[str, SourceCode]:
    """Return the code of the causes by its description, in the order of the causes."""
    found = {describe_source(each): each.source for each in report.causes if each.source is not None}
    return dict(islice(found.items(), MOST_SOURCES))


def number_of_source(report: ReportContent, cause: int) -> int:
    """Return the number of a cause's code in `list_sources`, from 1; 0 if it is not there."""
    name = describe_source(report.causes[cause]) if 0 <= cause < len(report.causes) else ""
    return next((i for i, each in enumerate(list_sources(report), 1) if each == name), 0)


def describe_repair(cause: Cause) -> str:
    """Describe an intervention: `with the expected step in place of the first wrong one, 43 of 43 candidates end as expected`."""
    found = cause.repair
    if found is None:
        return ""
    ends, do = "ends" if found.num_once == 1 else "end", "does" if found.num_healed == 1 else "do"
    text = "with the expected step in place of the first wrong one, "
    text += f"{found.num_once:,} of {count_of(found.num_tried, 'candidate')} {ends} as expected"
    if found.num_steps > found.num_tried:
        text += f"; in place of every such step, {found.num_steps:,} in all, {found.num_healed:,} {do}"
    if found.elsewhere:
        text += f"; another difference follows at {make_visible(found.elsewhere)}"
    return text + (f"; measured MRR: {found.metric:.4f}" if found.metric is not None else "")


def describe_later(divergence: Divergence) -> str:
    """Describe the steps after a divergence: `2 later steps of this candidate were not compared`; empty after a last step."""
    num = divergence.later_steps
    return (
        f"{count_of(num, 'later step')} of this candidate {'was' if num == 1 else 'were'} not compared" if num else ""
    )


def describe_location(divergence: Divergence) -> str:
    """Describe the location of a divergence: `candidate 3, step 2`, or only the candidate."""
    return f"candidate {divergence.candidate}" + (f", step {divergence.step}" if divergence.step >= 0 else "")


def metric_rows(report: ReportContent, lacking: str) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    """Yield the name of each metric, and its expected and actual value over each of `SIDES`; nothing without metrics.

    lacking: the text for a missing value
    """

    def render(values: dict[str, float], key: str) -> str:
        return f"{values[key]:.4f}" if key in values else lacking

    both = report.metrics
    for metric in (*METRICS, MEAN_RANK) if both.expected or both.actual else ():
        keys = [f"{side}.realistic.{metric}" for side in SIDES]
        if metric == MEAN_RANK and keys[0] not in both.expected:
            continue
        yield metric, tuple((render(both.expected, key), render(both.actual, key)) for key in keys)


def metric_lines(report: ReportContent) -> list[str]:
    """Describe each metric in a line: `hits_at_1, realistic ranks: 0.8200 -> 0.4700 both, 0.8100 head, 0.8300 tail`."""
    return [
        f"{metric}, realistic ranks: "
        + ", ".join(
            f"{expected if expected == actual else f'{expected} -> {actual}'} {side}"
            for side, (expected, actual) in zip(SIDES, cells, strict=True)
        )
        for metric, cells in metric_rows(report, lacking="-")
    ]


def describe_finding(divergence: Divergence) -> str:
    """Describe the method by which the stage of a divergence was found."""
    if divergence.is_assumed:
        return "assumed: others that differ alike in the recorded steps were replayed, and all have this stage"
    if divergence.is_replayed:
        return "found by replaying the step stage by stage"
    if divergence.field.startswith("stage."):
        return "found in the recorded outputs of the stages"
    if divergence.field == DIGEST:
        return "or a later stage: only digests were recorded, and they differ"
    return "inferred from the traces"


def exercise_lines(report: ReportContent) -> list[str]:
    """Describe the exercise of both sides and the minimum, the steps of each stage, and advice; empty if it is unknown."""
    found = report.exercise
    if found is None:
        return []
    sides = (
        {"": found.expected}
        if found.expected == found.actual
        else {"expected ": found.expected, "actual ": found.actual}
    )
    lines = limit_lines(report)
    lines += [f"{role}exercised: {describe_exercise(each)}" for role, each in sides.items()]
    if report.verdict is Verdict.AGREE:
        lines[-1] += f" (required: {describe_minimum(report.minimum)})"
    lines += [f"{role}stages: {describe_stages(each)}" for role, each in sides.items() if each.stages]
    # Only a comparison of engines that ran has a job.
    if report.verdict is not Verdict.DIVERGE and (advice := advise(found.of_both, is_recorded=report.job is None)):
        lines.append(f"to exercise more: {advice}")
    return lines


def limit_lines(report: ReportContent) -> list[str]:
    """Describe the limits that affected the verdict, and the untested limits; empty if the exercise is unknown."""
    return (
        []
        if report.exercise is None
        else describe_limits(report.limits, report.exercise.expected, report.exercise.actual)
    )


def describe_exercise(exercise: Exercise) -> str:
    """Describe the evidence of a side: `5 candidates proved, 3 of 3 rules used, 242 of 278 steps with ...`."""

    def of(num: int | None, every: int | None, what: str) -> str:
        if num is None:
            return f"{what} unknown"
        return f"{num:,} {what}" if every is None else f"{num:,} of {every:,} {what}"

    proved = exercise.proved
    parts = (
        "candidates proved unknown" if proved is None else f"{count_of(proved, 'candidate')} proved",
        of(exercise.rules, exercise.num_rules, "rules used"),
        of(exercise.facts, exercise.num_facts, "facts used") if exercise.facts is not None else "",
        of(exercise.choices, exercise.counted or None, "steps with a choice"),
        f"{' and '.join(ITEMS[name] for name in exercise.inferred)} inferred from the other side"
        if exercise.inferred
        else "",
    )
    return ", ".join(filter(None, parts))


def describe_stages(exercise: Exercise) -> str:
    """Describe in how many steps each stage acted: `match_rules 139, limit 0 of 278 steps`."""
    acted = ", ".join(f"{name} {num:,}" for name, num in exercise.stages.items() if name != Stage.CHOOSE)
    counted = "" if exercise.counted == exercise.steps else f"; counted in {exercise.counted:,} of {exercise.steps:,}"
    return f"{acted} of {exercise.counted:,} steps{counted}"


def describe_limits(limits: DeclaredLimits, *sides: Exercise) -> list[str]:
    """Describe the limits that dropped something, each with a sufficient value, and the limits that no step reached.

    The numbers are those of the side that a limit affects more.
    """

    def find_most(name: str) -> Exercise:
        return max(sides, key=lambda side: side.limits.get(name, 0))

    lines = []
    reached = {name: find_most(name) for side in sides for name in side.limits}
    for name, exercise in reached.items():
        num, enough = exercise.limits.get(name, 0), max(side.enough.get(name, 0) for side in sides)
        value = getattr(limits, name, None)
        if not num or value is None:
            continue
        were = "was" if num == 1 else "were"
        what = f"{num:,} of {exercise.counted:,} steps {were} cut"
        if name == "max_depth":
            what = f"{count_of(num, 'derivation')} ended at the limit"
        other = (
            f"; {name} {enough:,} would cut none of the program's resolvents"
            if value < enough <= _LARGEST.get(name, 0)
            else ""
        )
        lines.append(f"{what}: the verdict holds only for {name} {value:,}{other}")
    if never := [name for name in _LIMITS if name in reached and not reached[name].limits.get(name)]:
        lines.append(f"no step reached {' or '.join(never)}: a fault there would not have been seen")
    return lines


def advise(exercise: Exercise, *, is_recorded: bool) -> str:
    """Return advice on exercising more, by other options or recordings; empty if everything was exercised."""
    never = [name for name in _LIMITS if exercise.limits.get(name) == 0]
    reached = [(name, exercise.largest.get(name, 0)) for name in never]
    option, how = ("", "record again with") if is_recorded else ("--limits ", "lower a limit with")
    more, candidates = ("record more queries", "candidates") if is_recorded else ("raise --queries", "--corruptions")
    lower = " or ".join(f"{option}{name}={most - 1}" for name, most in reached if most > 1)
    has_unused = exercise.rules is not None and exercise.num_rules and exercise.rules < exercise.num_rules
    idle = [name for name, num in exercise.stages.items() if not num and name not in (Stage.LIMIT, Stage.CHOOSE)]
    parts = (
        f"{f'{how} {lower}, or ' if lower else ''}{more}" if never else "",
        f"the program has no rules{'' if is_recorded else ': give a file of rules with --rules'}"
        if exercise.num_rules == 0
        else "",
        f"{_describe_unused(exercise)}: {more} or {candidates}" if has_unused else "",
        f"never acted: {', '.join(idle)}" if idle and exercise.counted else "",
    )
    return use_words("; ".join(filter(None, parts)))


def _describe_unused(exercise: Exercise) -> str:
    num = (exercise.num_rules or 0) - (exercise.rules or 0)
    named = [clip(rule, _MOST_OF_RULE) for rule in exercise.unused_rules[:MOST_RULES]]
    rest = num - len(named)
    listed = "; ".join(named) + (f" and {rest:,} more" if named and rest else "")
    return f"{num:,} rule{'' if num == 1 else 's'} not used{f' ({listed})' if listed else ''}"
