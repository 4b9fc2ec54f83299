"""Mistakes in the stages of a search, as stages, with which a level is taken again to see if they give what an engine kept."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from kgverify.program.limits import Dialect, Search
from kgverify.program.outcomes import GoalKind, Stage
from kgverify.step.clauses import number_variables
from kgverify.step.plain_step import Taken
from kgverify.step.search import ALL_SOUND, Child, Draw, Kept, Path, SearchStages, draw_child, expand, merge, top_k


class Mistake(NamedTuple):
    """A wrong stage, and what it does, in words."""

    stage: Stage
    words: str
    stages: SearchStages


def _weigh(weigh: Callable[[Path, Sequence[float], int, float], float]) -> SearchStages:
    """Return stages that expand by a function of the path, its scores, the index of the child, and the sum over the beam."""

    def expand_otherwise(beam: Sequence[Path], taken: Sequence[Taken]) -> list[Child]:
        lists = [[each.score for each in of_path.resolvents] for of_path in taken]
        every = [score for scores in lists for score in scores]
        total = _log_sum(every)
        return [
            Child(path.place, i, weigh(path, scores, i, total))
            for path, scores in zip(beam, lists, strict=True)
            for i in range(len(scores))
        ]

    return ALL_SOUND._replace(expand=expand_otherwise)


def _log_sum(scores: Sequence[float]) -> float:
    most = max(scores)
    return most + math.log(math.fsum(math.exp(each - most) for each in scores))


def _shifted(by: int) -> SearchStages:
    """Return stages in which each path has the log-probability of another path."""

    def expand_otherwise(beam: Sequence[Path], taken: Sequence[Taken]) -> list[Child]:
        sums = [path.log_probability for path in beam]
        moved = [path._replace(log_probability=sums[(i + by) % len(sums)]) for i, path in enumerate(beam)]
        return expand(moved, taken)

    return ALL_SOUND._replace(expand=expand_otherwise)


_BOTH: Final = ("beam", "all")

Choose = Callable[[Search, Sequence[Child], Mapping[int, Taken]], Sequence[Child]]


def _choosing(choose: Choose, *, kinds: Sequence[str] = ("beam",)) -> SearchStages:
    """Return stages that keep, in order of place, what a function selects from the children in searches of some kinds."""

    def keep(draw: Draw, children: Sequence[Child], taken: Mapping[int, Taken]) -> list[Kept]:
        if draw.search.kind not in kinds:
            return top_k(draw, children, taken)
        chosen = choose(draw.search, children, taken)
        return [Kept(child.parent, child.choice, i, child.log_probability) for i, child in enumerate(chosen)]

    return ALL_SOUND._replace(top_k=keep)


def _sorted(children: Sequence[Child]) -> list[Child]:
    return sorted(children, key=lambda child: -child.log_probability)


def _ordered(search: Search, children: Sequence[Child]) -> Sequence[Child]:
    return _sorted(children) if search.kind == "beam" else children


def _weigh_step(child: Child, taken: Mapping[int, Taken]) -> float:
    scores = [each.score for each in taken[child.parent].resolvents]
    return scores[child.choice] - _log_sum(scores)


def _among_first(most: int) -> Choose:
    return lambda search, children, taken: _ordered(search, children[:most])[: search.size]


def _by_rounded(search: Search, children: Sequence[Child], rounded: Callable[[float], float]) -> list[Child]:
    return sorted(children, key=lambda child: -rounded(child.log_probability))[: search.size]


def _as_bfloat16(number: float) -> float:
    """Round a number to the nearest bfloat16; of two equally near ones, to the even one."""
    bits = int(np.float32(number).view(np.uint32))
    return float(np.uint32((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).view(np.float32))


def _best_of_paths(children: Sequence[Child], most: int) -> list[Child]:
    """Return the best children of each path, from the best on."""
    parents = dict.fromkeys(child.parent for child in children)
    return _sorted(
        [c for place in parents for c in _sorted([each for each in children if each.parent == place])[:most]]
    )


def _is_goal(child: Child, taken: Mapping[int, Taken]) -> bool:
    return taken[child.parent].resolvents[child.choice].kind == GoalKind.GOAL


def _content(child: Child | Kept, taken: Mapping[int, Taken]) -> object:
    resolvent = taken[child.parent].resolvents[child.choice]
    return resolvent.kind, number_variables(resolvent.atoms)


def _first_of_goals(children: Sequence[Child], taken: Mapping[int, Taken]) -> list[Child]:
    firsts: dict[object, Child] = {}
    for child in children:
        firsts.setdefault(_content(child, taken) if _is_goal(child, taken) else child, child)
    return list(firsts.values())


def _drawing(change: Callable[[Draw, int, Sequence[int]], tuple[Draw, int]]) -> SearchStages:
    """Return stages in which a sample draws as another one: a function of the draw, the sample and all samples."""

    def keep(draw: Draw, children: Sequence[Child], taken: Mapping[int, Taken]) -> list[Kept]:
        if draw.search.kind != "sample":
            return top_k(draw, children, taken)
        chosen = {place: draw_child(*change(draw, place, list(taken)), taken[place]) for place in taken}
        return [Kept(*child[:2], child.parent, child[2]) for child in children if child.choice == chosen[child.parent]]

    return ALL_SOUND._replace(top_k=keep)


def _drop_last(draw: Draw, children: Sequence[Child], taken: Mapping[int, Taken]) -> list[Kept]:
    """Draw the last resolvent of a path as the one before it."""
    listed = {place: len(each.resolvents) for place, each in taken.items()}
    return [
        each if draw.search.kind != "sample" or each.choice + 1 < listed[each.parent] or not each.choice else other
        for each in top_k(draw, children, taken)
        for other in [
            next(Kept(*c[:2], c.parent, c[2]) for c in children if c[:2] == (each.parent, max(0, each.choice - 1)))
        ]
    ]


def _choose_highest(draw: Draw, children: Sequence[Child], taken: Mapping[int, Taken]) -> list[Kept]:
    chosen = _best_of_paths(children, 1) if draw.search.kind == "sample" else []
    ordered = sorted(chosen, key=lambda child: child.parent)
    return [Kept(child.parent, child.choice, child.parent, child.log_probability) for child in ordered]


def _merge_otherwise(dialect: Dialect, kept: Sequence[Kept], taken: Mapping[int, Taken]) -> list[Kept]:
    """Merge into the last child with the same goal."""
    back = [each._replace(place=-each.place) for each in reversed(kept)]
    return [
        each._replace(place=-each.place, merged_into=-each.merged_into if each.merged_into != -1 else -1)
        for each in reversed(merge(dialect, back, taken))
    ]


def _close_up(dialect: Dialect, kept: Sequence[Kept], taken: Mapping[int, Taken]) -> list[Kept]:
    merged = merge(dialect, kept, taken)
    places = {each.place: i for i, each in enumerate(child for child in merged if child.merged_into < 0)}
    return [
        each._replace(place=places.get(each.place, -1), merged_into=places.get(each.merged_into, -1)) for each in merged
    ]


MISTAKES: Final = (
    Mistake(
        Stage.EXPAND,
        "the log-probability of the path before the step is left out",
        _weigh(lambda path, scores, i, total: scores[i] - _log_sum(scores)),
    ),
    Mistake(
        Stage.EXPAND,
        "the log-probability of the path before the step is added twice",
        _weigh(lambda path, scores, i, total: 2 * path.log_probability + scores[i] - _log_sum(scores)),
    ),
    Mistake(
        Stage.EXPAND,
        "the scores are normalised over the whole beam, not over each path",
        _weigh(lambda path, scores, i, total: path.log_probability + scores[i] - total),
    ),
    Mistake(
        Stage.EXPAND,
        "the scores are added without being normalised",
        _weigh(lambda path, scores, i, total: path.log_probability + scores[i]),
    ),
    Mistake(
        Stage.EXPAND,
        "the scores alone decide: they are not normalised, and the log-probability of the path is left out",
        _weigh(lambda path, scores, i, total: scores[i]),
    ),
    Mistake(Stage.EXPAND, "each path has the log-probability of the path after it", _shifted(1)),
    Mistake(Stage.EXPAND, "each path has the log-probability of the path before it", _shifted(-1)),
    Mistake(
        Stage.TOP_K,
        "of children with equal log-probabilities, the last one comes first",
        _choosing(lambda search, children, taken: _sorted(children[::-1])[: search.size]),
    ),
    Mistake(
        Stage.TOP_K,
        "of children with equal log-probabilities, that with the lower index in its path comes first",
        _choosing(lambda search, children, taken: _sorted(sorted(children, key=lambda c: c.choice))[: search.size]),
    ),
    Mistake(
        Stage.TOP_K,
        "one child less is kept",
        _choosing(
            lambda search, children, taken: _ordered(search, children)[: min(search.size, len(children)) - 1],
            kinds=_BOTH,
        ),
    ),
    Mistake(
        Stage.TOP_K,
        "one place of the beam is lost",
        _choosing(lambda search, children, taken: _ordered(search, children)[: search.size - 1], kinds=_BOTH),
    ),
    Mistake(
        Stage.TOP_K,
        "the best children are kept for each path, not for the beam",
        _choosing(lambda search, children, taken: _best_of_paths(children, search.size)),
    ),
    Mistake(
        Stage.TOP_K,
        "one child too many is kept",
        _choosing(lambda search, children, taken: _ordered(search, children)[: search.size + 1], kinds=_BOTH),
    ),
    Mistake(
        Stage.TOP_K,
        "only the best child of each path is considered",
        _choosing(lambda search, children, taken: _best_of_paths(children, 1)[: search.size]),
    ),
    Mistake(
        Stage.TOP_K,
        "the first children are kept, not the best",
        _choosing(lambda search, children, taken: children[: search.size]),
    ),
    Mistake(
        Stage.TOP_K,
        "the children are kept in order of their log-probabilities, not in the order of the paths",
        _choosing(lambda search, children, taken: _sorted(children)[: search.size], kinds=("all",)),
    ),
    Mistake(
        Stage.TOP_K,
        "the children are ordered by their scores alone",
        _choosing(
            lambda search, children, taken: sorted(
                children, key=lambda child: -taken[child.parent].resolvents[child.choice].score
            )[: search.size]
        ),
    ),
    Mistake(
        Stage.TOP_K,
        "the children are ordered by the log-probability of the last step alone",
        _choosing(
            lambda search, children, taken: sorted(children, key=lambda child: -_weigh_step(child, taken))[
                : search.size
            ]
        ),
    ),
    Mistake(
        Stage.TOP_K,
        "the log-probabilities are compared as float16",
        _choosing(
            lambda search, children, taken: _by_rounded(search, children, lambda number: float(np.float16(number)))
        ),
    ),
    Mistake(
        Stage.TOP_K,
        "the log-probabilities are compared as bfloat16",
        _choosing(lambda search, children, taken: _by_rounded(search, children, _as_bfloat16)),
    ),
    *(
        Mistake(
            Stage.TOP_K,
            f"only the first {most} children are considered",
            _choosing(_among_first(most), kinds=_BOTH),
        )
        for most in (16, 32, 64, 128, 256)
    ),
    Mistake(Stage.TOP_K, "the last resolvent of a path is never drawn", ALL_SOUND._replace(top_k=_drop_last)),
    Mistake(
        Stage.TOP_K,
        "the worst children are kept, not the best",
        _choosing(lambda search, children, taken: _sorted(children)[::-1][: search.size]),
    ),
    Mistake(
        Stage.TOP_K,
        "the best children are kept, but not in order of their log-probabilities",
        _choosing(
            lambda search, children, taken: [each for each in children if each in _sorted(children)[: search.size]]
        ),
    ),
    Mistake(
        Stage.TOP_K,
        "children that end their path take no place, and are lost",
        _choosing(lambda search, children, taken: [c for c in _sorted(children) if _is_goal(c, taken)][: search.size]),
    ),
    Mistake(
        Stage.TOP_K,
        "proofs come first, whatever their log-probabilities",
        _choosing(
            lambda search, children, taken: sorted(
                _sorted(children), key=lambda c: taken[c.parent].resolvents[c.choice].kind != GoalKind.TRUE
            )[: search.size]
        ),
    ),
    Mistake(Stage.TOP_K, "the highest score is chosen; nothing is drawn", ALL_SOUND._replace(top_k=_choose_highest)),
    Mistake(
        Stage.TOP_K, "every sample draws the number of the first one", _drawing(lambda draw, place, every: (draw, 0))
    ),
    Mistake(
        Stage.TOP_K,
        "the number that is drawn does not depend on the level",
        _drawing(lambda draw, place, every: (draw._replace(level=0), place)),
    ),
    Mistake(
        Stage.TOP_K,
        "the number that is drawn depends on the index among the open samples, not on the sample",
        _drawing(lambda draw, place, every: (draw, every.index(place))),
    ),
    Mistake(
        Stage.TOP_K,
        "the number that is drawn depends on the level from 1",
        _drawing(lambda draw, place, every: (draw._replace(level=draw.level + 1), place)),
    ),
    Mistake(
        Stage.TOP_K,
        "the seed is left out",
        _drawing(lambda draw, place, every: (draw._replace(search=draw.search._replace(seed=0)), place)),
    ),
    Mistake(
        Stage.MERGE,
        "the places of merged paths are closed up",
        ALL_SOUND._replace(merge=_close_up),
    ),
    Mistake(
        Stage.MERGE,
        "paths with the same goal are not merged",
        ALL_SOUND._replace(merge=lambda dialect, kept, taken: list(kept)),
    ),
    Mistake(
        Stage.MERGE,
        "paths with the same goal are merged before the best children are kept, so that others take their places",
        _choosing(
            lambda search, children, taken: _first_of_goals(_ordered(search, children), taken)[: search.size],
            kinds=_BOTH,
        ),
    ),
    Mistake(
        Stage.MERGE,
        "the best of the paths with the same goal is merged into the last",
        ALL_SOUND._replace(merge=_merge_otherwise),
    ),
)
"""Mistakes that a level may show by itself, the simplest first."""
