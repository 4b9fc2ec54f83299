"""From divergences to causes: those with one signature are one cause."""

import msgspec

from kgverify.comparison.classify import Finding
from kgverify.comparison.result import Cause, Divergence


def group_causes(
    divergences: tuple[Divergence, ...], findings: tuple[Finding, ...]
) -> tuple[tuple[Divergence, ...], tuple[Cause, ...]]:
    """The divergences with class and cause filled in, and the causes, those of most candidates first."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for i, (divergence, finding) in enumerate(zip(divergences, findings, strict=True)):
        groups.setdefault((divergence.stage, finding.kind.value, finding.situation), []).append(i)

    def size(members: list[int]) -> int:
        return len({divergences[i].candidate for i in members})

    ordered = sorted(groups.items(), key=lambda item: (-size(item[1]), item[1][0]))
    numbered = list(divergences)
    causes = []
    for number, ((stage, _, situation), members) in enumerate(ordered):
        for i in members:
            finding = findings[i]
            numbered[i] = msgspec.structs.replace(
                divergences[i],
                kind=finding.kind,
                evidence=finding.evidence,
                confidence=finding.confidence,
                cause=number,
            )
        causes.append(
            Cause(
                stage=stage,
                kind=findings[members[0]].kind,
                situation=situation,
                num_candidates=size(members),
                num_queries=len({divergences[i].query for i in members}),
                num_divergences=len(members),
                num_later=sum(divergences[i].later_steps for i in members),
                first=members[0],
            )
        )
    return tuple(numbered), tuple(causes)
