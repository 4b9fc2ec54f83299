"""Faults of a search: each function takes the place of a stage of all paths, which is its first argument."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from kgverify.program.limits import Dialect
from kgverify.program.outcomes import Outcome
from kgverify.prover.faults.plain_faults import replaces_plain
from kgverify.step.plain_step import Taken
from kgverify.step.search import Child, Draw, Ended, Kept, Path, add_probabilities

Expand: TypeAlias = Callable[[Sequence[Path], Sequence[Taken]], list[Child]]
TopK: TypeAlias = Callable[[Draw, Sequence[Child], Mapping[int, Taken]], list[Kept]]
Merge: TypeAlias = Callable[[Dialect, Sequence[Kept], Mapping[int, Taken]], list[Kept]]
Aggregate: TypeAlias = Callable[[Dialect, Sequence[Ended]], tuple[Outcome, float]]


@replaces_plain("no-parent-score", "expand")
def forget_parents(sound: Expand, beam: Sequence[Path], taken: Sequence[Taken]) -> list[Child]:
    """Give each child the log-probability of its last step alone."""
    return sound([path._replace(log_probability=0.0) for path in beam], taken)


@replaces_plain("softmax-over-beam", "expand")
def normalize_together(sound: Expand, beam: Sequence[Path], taken: Sequence[Taken]) -> list[Child]:
    """Normalize the scores of all paths together."""
    joined = taken[0]._replace(resolvents=[resolvent for each in taken for resolvent in each.resolvents])
    steps = sound([beam[0]._replace(log_probability=0.0)], [joined])
    before = {path.place: path.log_probability for path in beam}
    return [
        child._replace(log_probability=before[child.parent] + step.log_probability)
        for child, step in zip(sound(beam, taken), steps, strict=True)
    ]


@replaces_plain("last-equal-child", "top_k")
def keep_last(sound: TopK, draw: Draw, children: Sequence[Child], taken: Mapping[int, Taken]) -> list[Kept]:
    """Prefer the last of equal children."""
    return sound(draw, children[::-1] if draw.search.kind == "beam" else children, taken)


@replaces_plain("top-k-per-path", "top_k")
def divide_beam(sound: TopK, draw: Draw, children: Sequence[Child], taken: Mapping[int, Taken]) -> list[Kept]:
    """Keep the same number of children of each path."""
    if draw.search.kind == "sample":
        return sound(draw, children, taken)
    share = _resize(draw, max(1, draw.search.size // len(taken)))
    kept = [each for at in taken for each in sound(share, [child for child in children if child.parent == at], taken)]
    return [each._replace(place=place) for place, each in enumerate(kept)]


@replaces_plain("places-not-refilled", "top_k")
def keep_beam_size(sound: TopK, draw: Draw, children: Sequence[Child], taken: Mapping[int, Taken]) -> list[Kept]:
    """Keep no more children than the beam has paths, from the second level on."""
    is_full = draw.search.kind == "beam" and draw.level > 0
    return sound(_resize(draw, min(draw.search.size, len(taken))) if is_full else draw, children, taken)


def _resize(draw: Draw, size: int) -> Draw:
    return draw._replace(search=draw.search._replace(size=size))


@replaces_plain("one-draw", "top_k")
def draw_once(sound: TopK, draw: Draw, children: Sequence[Child], taken: Mapping[int, Taken]) -> list[Kept]:
    """Draw one number for all samples."""
    if draw.search.kind != "sample":
        return sound(draw, children, taken)
    kept = []
    for place, each in taken.items():
        (first,) = sound(draw, [child._replace(parent=0) for child in children if child.parent == place], {0: each})
        kept.append(first._replace(parent=place, place=place))
    return kept


@replaces_plain("merged-lower-score", "merge")
def keep_lowest(sound: Merge, dialect: Dialect, kept: Sequence[Kept], taken: Mapping[int, Taken]) -> list[Kept]:
    """Give a merged path the lowest of the log-probabilities."""
    merged = sound(dialect, kept, taken)
    lowest = {place: min(each.log_probability for each in group) for place, group in _group(merged, kept).items()}
    return [each._replace(log_probability=lowest.get(each.place, each.log_probability)) for each in merged]


@replaces_plain("merged-twice", "merge")
def add_twice(sound: Merge, dialect: Dialect, kept: Sequence[Kept], taken: Mapping[int, Taken]) -> list[Kept]:
    """Add the path with the best place to the sum twice."""
    merged = sound(dialect, kept, taken)
    groups = _group(merged, kept) if dialect.merge == "sum" else {}
    sums = {place: add_probabilities([group[0], *group]) for place, group in groups.items()}
    return [each._replace(log_probability=sums.get(each.place, each.log_probability)) for each in merged]


@replaces_plain("merged-worse-path", "merge")
def follow_last(sound: Merge, dialect: Dialect, kept: Sequence[Kept], taken: Mapping[int, Taken]) -> list[Kept]:
    """Continue from the least probable path, with its visited goals."""
    merged = sound(dialect, kept, taken)
    of_place = {each.place: each for each in kept}
    for first, *_, last in _group(merged, kept).values():
        if last.log_probability < first.log_probability:
            of_place[first.place], of_place[last.place] = last, first
    return [each._replace(parent=(by := of_place[each.place]).parent, choice=by.choice) for each in merged]


def _group(merged: Sequence[Kept], kept: Sequence[Kept]) -> dict[int, list[Kept]]:
    """Return the children of each merged path, by its place, as they were before, in order of place."""
    before = {each.place: each for each in kept}
    groups: dict[int, list[Kept]] = {}
    for each in merged:
        if each.merged_into >= 0:
            groups.setdefault(each.merged_into, [before[each.merged_into]]).append(before[each.place])
    return groups


@replaces_plain("unproved-best-path", "aggregate")
def ignore_worse_proofs(sound: Aggregate, dialect: Dialect, ended: Sequence[Ended]) -> tuple[Outcome, float]:
    """Take the outcome of the best path, proved or not."""
    best = max(ended, key=lambda each: each.log_probability)
    return sound(dialect, ended if best.outcome is Outcome.PROVED else [best])


@replaces_plain("repeated-samples", "aggregate")
def count_repetitions(sound: Aggregate, dialect: Dialect, ended: Sequence[Ended]) -> tuple[Outcome, float]:
    """Count a proof as often as it was sampled."""
    return sound(dialect, [each._replace(choices=(*each.choices, each.place)) for each in ended])


@replaces_plain("length-penalty", "aggregate")
def divide_by_length(sound: Aggregate, dialect: Dialect, ended: Sequence[Ended]) -> tuple[Outcome, float]:
    """Compare paths by the mean of their steps."""
    proofs = [each for each in ended if each.outcome is Outcome.PROVED]
    best = max(proofs or ended, key=lambda each: each.log_probability / len(each.choices))
    return sound(dialect, [best] if dialect.aggregate == "max" else ended)
