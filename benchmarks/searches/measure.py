"""The differ of searches, scored on engines with planted faults and on right ones."""

import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import kgverify
from benchmarks import Figure, make_parser, print_figures, print_header, print_row
from benchmarks.searches.arrays import ArraySearch, SinglePrecisionSearch
from benchmarks.searches.faults import FAN, FAULTS, Fault, Settings
from benchmarks.searches.lists import ListSearch

Row = tuple[list[object], list[bool]]
"""The cells of a row, and whether each of its figures is met."""

SEARCHES: Final = ("beam(1)", "beam(2)", "beam(5)", "beam(16)", "all(6)", "all(40)", "sample(1, 0)", "sample(8, 5)")

NEAR_TIES: Final = """\
beam(7) sum noisy_or never 423 4 3 5 3
beam(7) none sum never 872 5 2 5 3
beam(9) none sum where_no_terminal 834 6 3 4 3
beam(9) none sum never 876 6 1 5 3
beam(7) max noisy_or never 399 4 2 3 3
beam(9) none noisy_or never 547 6 2 4 3
beam(9) sum noisy_or never 628 5 0 4 3
beam(9) sum noisy_or never 264 5 1 5 3
beam(9) max max never 514 6 2 5 3
"""
"""Search, merge, aggregate, stopping, seed of the graph, queries, corruptions, max_depth, max_resolvents."""

TITLES: Final = (
    *("engine", "search", "merge", "aggregate", "policy", "stopping", "graph", "max_depth", "max_resolvents"),
    *("verdict", "stage", "near-ties", "CPU time, s"),
)


def measure_fault(fault: Fault) -> Row:
    """Verify an engine with a planted fault."""
    began = time.process_time()
    report = fault.settings.verify(fault.wrong)
    seconds = f"{time.process_time() - began:.1f}"
    first, is_found = report.first_divergence, report.verdict.value == "DIVERGE"
    stage = first.stage if first else ""
    causes = "; ".join(
        f"{each.stage} ({each.num_divergences}): {each.condition or each.situation}" for each in report.causes
    )
    cells: list[object] = [
        fault.name,
        report.verdict.value,
        ", ".join(fault.stages),
        stage,
        fault.condition,
        first.evidence if first else "",
        causes.replace("\n", " ").replace("|", "/"),
        seconds,
    ]
    return cells, [is_found, is_found and stage in fault.stages]


def list_near_ties() -> Iterator[tuple[Any, Settings]]:
    """Yield runs of a right engine in which rounding decides between two children that are equal exactly."""
    for line in NEAR_TIES.splitlines():
        search, merge, aggregate, stopping, seed, *numbers = line.split()
        numbers_of_run = (int(number) for number in numbers)
        yield ArraySearch, Settings(search, merge, aggregate, "shortest", stopping, f"random:{seed}", *numbers_of_run)


def list_right_runs() -> Iterator[tuple[Any, Settings]]:
    """Yield runs of both right engines: every search, merge, aggregate and policy, on different graphs."""
    number = 0
    graphs: tuple[Any, ...] = ("countries", FAN, *(f"random:{seed}" for seed in range(9)))
    for search in SEARCHES:
        for merge in ("none",) if search.startswith("sample") else ("none", "max", "sum"):
            for aggregate in ("max", "sum", "noisy_or"):
                for policy in ("shortest", "two_tower"):
                    settings = Settings(
                        search=search,
                        merge=merge,
                        aggregate=aggregate,
                        policy=policy,
                        stopping="where_no_terminal" if number % 3 == 1 else "never",
                        graph=graphs[number % len(graphs)],
                        queries=5,
                        max_depth=3 + number % 3,
                        max_resolvents=10 if number % 5 == 4 else 120,
                    )
                    yield ArraySearch, settings
                    yield ListSearch, settings
                    if number % 2:
                        yield SinglePrecisionSearch, settings
                    number += 1


def measure_right(run: tuple[Any, Settings]) -> Row:
    """Verify a right engine."""
    engine, settings = run
    began = time.process_time()
    # A narrow beam proves nothing in some of these graphs.
    report = settings.verify(engine, equality=kgverify.Equality(minimum={"choices": 1}))
    first = report.first_divergence
    cells: list[object] = [
        engine.__name__,
        *(settings.search, settings.merge, settings.aggregate, settings.policy, settings.stopping),
        getattr(settings.graph, "name", settings.graph),
        settings.max_depth,
        settings.max_resolvents,
        report.verdict.value,
        first.stage if first else "",
        len(report.near_ties),
        f"{time.process_time() - began:.1f}",
    ]
    return cells, [report.verdict.value == "AGREE"]


PARTS: Final[
    dict[str, tuple[Callable[[], Any], Callable[[Any], Row], tuple[str, ...], tuple[tuple[str, float], ...]]]
] = {
    "faults": (
        lambda: FAULTS,
        measure_fault,
        ("fault", "verdict", "true stage", "stage", "true condition", "evidence", "causes", "CPU time, s"),
        (("found", 1.0), ("stage", 0.95)),
    ),
    "ties": (list_near_ties, measure_right, TITLES, (("agree", 1.0),)),
    "right": (list_right_runs, measure_right, TITLES, (("agree", 1.0),)),
}
"""The cases of each part, the function that measures one, the titles of its table, and its figures with their targets."""


def run_searches(words: list[str]) -> int:
    """Score the differ of searches on cases whose answer is known.

        python -m benchmarks searches
        python -m benchmarks searches faults --only merge

    `faults`: planted in two search engines. `right`: both engines without a fault, one of them in float32 as well. `ties`:
    where rounding decides.
    """
    parser = make_parser(run_searches)
    parser.add_argument("part", nargs="?", default="all", choices=(*PARTS, "all"))
    parser.add_argument("--only", default="", help="a part of the names of the faults to measure")
    options = parser.parse_args(words)
    figures = []
    for name in PARTS if options.part == "all" else (options.part,):
        list_cases, measure, titles, targets = PARTS[name]
        print_header(*titles)
        results: list[list[bool]] = []
        for case in list_cases():
            if options.only not in getattr(case, "name", ""):
                continue
            try:
                cells, met = measure(case)
            except kgverify.KgverifyError as error:
                who = [case.name] if isinstance(case, Fault) else [case[0].__name__, *case[1][:5]]
                cells, met = [*who, f"{type(error).__name__}: {error}".replace("\n", " ")], [False] * len(targets)
            print_row(*cells, *[""] * (len(titles) - len(cells)))
            results.append(met)
        columns = zip(*results, strict=True) if results else ()
        figures += [
            Figure(f"{name}: {title}", sum(column), len(results), target)
            for (title, target), column in zip(targets, columns, strict=bool(results))
        ]
    return print_figures(figures)
