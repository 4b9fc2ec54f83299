"""The stages that can be named in a dialect: the rules of inference assume the order of stages of docs/semantics.md.

Where these rules do not hold, a divergence is shown with its class and its difference, and without a stage.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from kgverify.comparison.classify import Finding
from kgverify.comparison.inference.single_fault import ALONE
from kgverify.comparison.result import Divergence
from kgverify.program.dialect import OURS, Dialect
from kgverify.program.stages import STEP_STAGES, Stage

UNNAMED: Final = "unknown"
"""The stage of a divergence that cannot be named."""

_FILTERS: Final = {
    Stage.PRUNE: {"prune"},
    Stage.REVISIT: {"revisit"},
    Stage.CLOSE: {"close"},
    Stage.LIMIT: {"max_atoms", "max_resolvents"},
}
_STAGE_OF: Final = {name: stage for stage, names in _FILTERS.items() for name in names if stage is not Stage.LIMIT}


def order_of_stages(dialect: Dialect) -> tuple[Stage, ...]:
    """Return the stages of a step in the order of a dialect; what `limit` gives is the list that is offered, at the end."""
    applied = [_STAGE_OF[name] for name in dialect.filters if name in _STAGE_OF]
    applied.insert(applied.index(Stage.REVISIT) if Stage.REVISIT in applied else len(applied), Stage.RENAME)
    begin, end = STEP_STAGES.index(Stage.PRUNE), STEP_STAGES.index(Stage.LIMIT)
    return (*STEP_STAGES[:begin], *applied, *STEP_STAGES[end:])


def follows_inference(dialect: Dialect) -> bool:
    """Return whether the rules that infer a stage from the outputs of others hold in a dialect."""
    return not _describe_change(dialect) and dialect.filters == OURS.filters and dialect.stopping == OURS.stopping


def name_in_dialect(
    divergences: Sequence[Divergence], findings: Sequence[Finding], dialect: Dialect | None
) -> tuple[tuple[Divergence, ...], tuple[Finding, ...]]:
    """Return divergences, and their classes, without the stages that cannot be named; the evidence says why."""
    if dialect is None or dialect == OURS:
        return tuple(divergences), tuple(findings)
    named, explained = [], []
    for divergence, finding in zip(divergences, findings, strict=True):
        why = "" if ALONE in finding.evidence else _why_unnamed(divergence, dialect)
        if why:
            divergence = msgspec.structs.replace(divergence, stage=UNNAMED)
            parts = [finding.evidence, f"no stage is named: {why}"]
            finding = finding._replace(evidence="; ".join(filter(None, parts)))
        named.append(divergence)
        explained.append(finding)
    return tuple(named), tuple(explained)


def _why_unnamed(divergence: Divergence, dialect: Dialect) -> str:
    if divergence.stage not in (*_FILTERS, Stage.MATCH_RULES, Stage.MATCH_FACTS):
        return ""
    stage = Stage(divergence.stage)
    if stage in _FILTERS and not _FILTERS[stage] & {*dialect.filters}:
        return f"the dialect does not apply {stage.value}"
    if divergence.field == f"stage.{stage.value}":
        # Both engines showed their stages, in the order of the dialect.
        hidden = _first_hidden(dialect)
        is_behind = hidden is not None and stage in _FILTERS
        return f"its filter {hidden} shows no output of its own" if is_behind else ""
    return _describe_change(dialect)


def _first_hidden(dialect: Dialect) -> str | None:
    """Return the first filter after which others follow and whose output no stage shows."""
    filters = dialect.filters
    last = max((i for i, name in enumerate(filters) if name in _STAGE_OF), default=-1)
    return next((name for i, name in enumerate(filters) if name not in _STAGE_OF and i < last), None) or (
        "duplicates" if "duplicates" in filters else None
    )


def _describe_change(dialect: Dialect) -> str:
    """Return the reason for which the rules of inference do not hold in a dialect; empty if they do."""
    usual = [name for name in OURS.filters if name in dialect.filters]
    if [*dialect.filters] != usual:
        return f"the dialect applies its filters in another order: {', '.join(dialect.filters)}"
    for name in ("long_resolvents", "memory", "forgets_names", "skips_unary"):
        if getattr(dialect, name) != getattr(OURS, name):
            return f"the dialect has another {name}"
    return "the dialect excludes positives only" if dialect.exclusion == "positives_only" else ""
