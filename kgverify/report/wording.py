"""Words that several renderings share, and text made fit to be shown."""

import shlex

from kgverify.comparison.result import DIGEST, NO_CANDIDATE, DifferenceClass, Divergence, Value
from kgverify.program.stages import Stage
from kgverify.report.report import Report
from kgverify.trace.model.header import EngineInfo

MOST_CHARACTERS = 400
"""Of one text; a name may be as long as its author liked."""


def make_visible(text: str) -> str:
    """The text with control characters as pictures; newlines and tabs stay.

    What no XML file may hold, and what would turn the direction of the text after it, becomes U+FFFD.
    """
    if text.isprintable():
        return text
    return "".join(_visible_character(c) for c in text)


def _visible_character(character: str) -> str:
    code = ord(character)
    if code < 0x20 and character not in "\n\t":
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    is_odd = 0x80 <= code < 0xA0 or 0xD800 <= code < 0xE000 or code & 0xFFFE == 0xFFFE
    is_turning = code in (0x200E, 0x200F) or 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069
    return "\ufffd" if is_odd or is_turning else character


def clip(text: str, most: int = MOST_CHARACTERS) -> str:
    """The text, cut at `most` characters with a mark that says so."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"


def value_lines(value: Value) -> list[str]:
    """A value of a divergence, line by line."""
    return [clip(str(each)) for each in (value if isinstance(value, list) else [value])]


def describe_engine(engine: EngineInfo) -> str:
    """`compiled (eager, cpu, float32, fact-cap)`."""
    return f"{engine.name} ({', '.join(filter(None, (engine.mode, engine.device, engine.precision, *engine.faults)))})"


def describe_kind(divergence: Divergence) -> str:
    """`missing: 4 facts missing`, or the field where no class was found."""
    if divergence.kind is DifferenceClass.UNCLASSIFIED and not divergence.evidence:
        return f"{divergence.field} differs"
    return f"{divergence.kind.value}: {divergence.evidence}" if divergence.evidence else divergence.kind.value


def describe_divergence(divergence: Divergence) -> str:
    """`match_facts at step 1 of p(a, b) (candidate 0, query 0, head side): missing: 4 facts missing`."""
    where = f" at step {divergence.step}" if divergence.step >= 0 else ""
    return (
        f"{divergence.stage}{where} of {clip(divergence.atom)} (candidate {divergence.candidate},"
        f" query {divergence.query}, {divergence.side} side): {clip(describe_kind(divergence))}"
    )


def describe_values(divergence: Divergence) -> str:
    """Both values, one after the other, over several lines."""
    lines = [f"goal: {clip(divergence.goal)}"] if divergence.goal else []
    for role, value in (("expected", divergence.expected), ("actual", divergence.actual)):
        listed = value_lines(value)
        if len(listed) == 1:
            lines.append(f"{role}: {listed[0]}")
        else:
            lines += [f"{role}:", *(f"  {each}" for each in listed)]
    return "\n".join(lines)


def describe_coverage(report: Report) -> str:
    """`1,120 candidates, 2,314 steps, 6,812 resolvents, 21 fields compared`."""
    c = report.coverage
    return (
        f"{c.candidates:,} candidates, {c.steps:,} steps, {c.resolvents:,} resolvents, {len(c.fields)} fields compared"
    )


def describe_run(report: Report) -> str:
    """`graph countries, 20 queries of test, 50 corruptions a side, seed 0, policy shortest`."""
    run = report.run
    corruptions = "all" if run.num_corruptions < 0 else run.num_corruptions
    return (
        f"graph {clip(run.graph) or '?'}, {run.num_queries} queries of {clip(run.split)}, {corruptions} corruptions"
        f" a side, seed {run.seed}, policy {clip(report.policy.name)}{', lockstep' if report.lockstep else ''}"
    )


def describe_loss(report: Report) -> str:
    """`MRR 0.8200 expected, 0.4700 actual: match_facts explains 0.3100 of the 0.3500 lost`; empty if nothing was split."""
    attribution = report.attribution
    if attribution is None:
        return ""
    lost = attribution.expected - attribution.actual
    whole = f"{attribution.expected:.4f} expected, {attribution.actual:.4f} actual"
    shares = sorted(attribution.shares, key=lambda share: -abs(share.share))[:3]
    parts = [f"{cause_label(report, share.cause)} explains {share.share:.4f}" for share in shares if share.share]
    return f"{whole}: {', '.join(parts) or 'no cause explains anything'} of the {lost:.4f} lost"


def stage_order(stage: str) -> tuple[int, str]:
    """What stages are sorted by: where they run; unknown ones come last."""
    names = [each.value for each in Stage]
    return (names.index(stage) if stage in names else len(names)), stage


def cause_label(report: Report, cause: int) -> str:
    """`match_facts (missing)`, with the situation where there is one."""
    if not 0 <= cause < len(report.causes):
        return "rounding at near-ties"
    found = report.causes[cause]
    return f"{found.stage} ({', '.join(filter(None, (found.kind.value, clip(found.situation))))})"


def show_commands(divergence: Divergence, number: int, actual_candidate: int | None) -> tuple[str, ...]:
    """What to type, in the folder of the run, to look at a divergence; a side without the candidate has no command.

    number: of the divergence in the report, from 1
    """
    step = f" --step {divergence.step}" if divergence.step >= 0 else ""
    commands = [f"kgverify show . --divergence {number}"]
    if divergence.expected != NO_CANDIDATE and divergence.candidate >= 0:
        commands.append(f"kgverify show expected.h5 --candidate {divergence.candidate}{step}")
    if actual_candidate is not None:
        commands.append(f"kgverify show actual.h5 --candidate {actual_candidate}{step}")
    return tuple(commands)


def diff_command(report: Report) -> str:
    """The comparison again, in lockstep if it was free-running; empty for engines that kgverify does not have."""
    if report.command:
        return report.command if report.lockstep else f"{report.command} --lockstep"
    run, engine = report.run, report.environment.actual
    if not run.graph or engine.name != "compiled" or report.policy.name not in ("shortest", "two_tower"):
        return ""
    limits = report.limits
    words = ["kgverify", "diff", "--graph", run.graph, "--split", run.split, "--queries", str(run.num_queries)]
    words += ["--corruptions", "all" if run.num_corruptions < 0 else str(run.num_corruptions)]
    words += ["--seed", str(run.seed), "--policy", report.policy.name]
    words += ["--max-depth", str(limits.max_depth), "--max-atoms", str(limits.max_atoms)]
    words += ["--max-resolvents", str(limits.max_resolvents)]
    words += [] if limits.exclude_query else ["--no-exclude-query"]
    words += ["--mode", engine.mode] if engine.mode else []
    for fault in engine.faults:
        words += ["--fault", fault]
    return shlex.join(words if report.lockstep else [*words, "--lockstep"])


def describe_finding(divergence: Divergence) -> str:
    """How the stage of a divergence was found."""
    if divergence.is_replayed:
        return "found by replaying the step stage by stage"
    if divergence.field.startswith("stage."):
        return "told by the stages as they were recorded"
    if divergence.field == DIGEST:
        return "or a later stage: the digests differ, and do not tell in what"
    return "read off the traces"
