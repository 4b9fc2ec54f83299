"""A benchmark, and its comparison with a saved one, as lines of text."""

from collections.abc import Callable, Iterator, Sequence

from kgverify.bench.compare import Change, Comparison, RunComparison
from kgverify.bench.result import BenchResult, Measurement, State, summarize

Row = Sequence[str]

_NONE = "–"


def render_result(result: BenchResult, width: int = 0) -> list[str]:
    """Render the work, the machine, the speeds, the warm-up and the agreement as lines.

    Args:
        result: the measurements.
        width:  the columns of the terminal; a table that is wider becomes a list. 0 for any width.
    """
    lines = [*_head(result), ""]
    timed = [each for each in result.measurements if each.samples]
    if timed:
        lines += [*_speeds(result, timed, width), "", *_starts(result, timed, width), ""]
    lines += _agreements(result)
    lines += [
        f"{each.name:<16} {each.describe_state()}" for each in result.measurements if each.state is not State.TIMED
    ]
    unmeasured: dict[tuple[str, str], list[str]] = {}
    for measurement in result.measurements:
        for what, reason in measurement.unmeasured.items():
            unmeasured.setdefault((what, reason), []).append(measurement.name)
    lines += [
        f"{'not measured':<16} {what} of {', '.join(names)}: {reason}" for (what, reason), names in unmeasured.items()
    ]
    return lines


def render_comparison(compared: RunComparison, where: str, width: int = 0) -> list[str]:
    """Render the ratios, or the obstacles to a comparison, as lines; `width` as in `render_result`."""
    lines = [f"beside {where} (kgverify {compared.versions[0]}; this is {compared.versions[1]})"]
    lines += [
        f"  {each.aspect} differs, as allowed: {each.field} {each.before} -> {each.after}" for each in compared.crossed
    ]
    if compared.obstacles:
        lines += ["  NOT COMPARED: the work or the machine is another"]
        lines += [f"    {each.aspect}: {each.field} was {each.before}, is {each.after}" for each in compared.obstacles]
        aspects = dict.fromkeys(each.aspect for each in compared.obstacles)
        return [*lines, f"  to compare them anyway: {' '.join(f'--across {aspect}' for aspect in aspects)}"]
    head = ("", "", "time, ratio", "noise alone", "")
    return [*lines, *align([head, *map(_comparison_row, compared.rows)], width)]


def align(rows: Sequence[Row], width: int = 0) -> list[str]:
    """Align columns: the first one and texts to the left, numbers to the right.

    Args:
        rows:  the titles, then the cells of each row.
        width: if the lines are longer, list the cells of each row below its name. 0 for any width.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if not i or cell[:1].isalpha() else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    if width and max(map(len, lines)) > width:
        titles = rows[0]
        listed = [
            [row[0], *(f"  {title}  {cell}" for title, cell in zip(titles[1:], row[1:], strict=True))]
            for row in rows[1:]
        ]
        return [titles[0], *(line for each in listed for line in each)]
    return lines


def _head(result: BenchResult) -> Iterator[str]:
    work, machine = result.work, result.environment
    title = "MEASURED" if result.is_right else "WRONG"
    if not result.is_complete:
        title = f"{title}, INTERRUPTED"
    yield f"{title}   {work.describe_amount()}, size {work.size}"
    corruptions = "all" if work.num_corruptions < 0 else f"{work.num_corruptions:,}"
    faults = f", faults {', '.join(work.faults)}" if work.faults else ""
    yield (
        f"  graph {work.graph}, at most {work.num_queries:,} queries of {work.split}, {corruptions} corruptions,"
        f" seed {work.seed}, policy {work.policy}, {work.precision}{faults}"
    )
    if work.engine or work.reference != "reference":
        yield f"  reference: {work.reference}; engine: {work.engine or 'compiled'}"
    triton = f", Triton {machine.triton}" if machine.triton and machine.device == "cuda" else ""
    yield (
        f"  {machine.device_name} ({machine.device}), {machine.num_cpus} CPUs, {machine.threads} threads,"
        f" torch {machine.torch}{triton}, products {machine.matmul_precision}, caches {machine.caches}"
    )


def _speeds(result: BenchResult, timed: Sequence[Measurement], width: int) -> list[str]:
    statistics = ("min", "median", "mean", "max", "std dev")
    head = ("steady state, ms", "calls", *statistics, f"µs/{result.unit}", "x eager", "x reference")
    rows: list[Row] = [head]
    for each in timed:
        spread = summarize(each.samples)
        of_unit = spread.median / each.num_units
        is_sample = each.name == "reference" and each.num_units < result.work.num_candidates
        rows.append(
            (
                f"{each.name} ({each.num_units:,})" if is_sample else each.name,
                str(len(each.samples)),
                *(f"{1e3 * value:,.4g}" for value in spread),
                f"{1e6 * of_unit:,.4g}",
                *(_times(result.find(base), of_unit) for base in ("eager", "reference")),
            )
        )
    # Strategies have no reference.
    return align(rows if result.work.kind == "modes" else [row[:-1] for row in rows], width)


def _times(base: Measurement | None, of_unit: float) -> str:
    """Return the ratio of a speed to another."""
    if base is None or not base.samples:
        return _NONE
    return f"{summarize(base.samples).median / base.num_units / of_unit:.3g}"


def _starts(result: BenchResult, timed: Sequence[Measurement], width: int) -> list[str]:
    seconds = ("build", "first", "second", "compile")
    launches = (f"launches/{result.unit}", "/tick")
    head = ("warm-up, s", *seconds, "cache", "ticks", *launches, "device/wall", "peak MiB")
    rows: list[Row] = [head]
    for each in timed:
        wall = summarize(each.samples).median
        rows.append(
            (
                each.name,
                *(
                    _number(value, "{:.3g}")
                    for value in (each.build_seconds, each.first_seconds, each.second_seconds, each.compile_seconds)
                ),
                each.cache or _NONE,
                _number(each.ticks, "{:,}"),
                _number(_ratio(each.launches, each.num_units), "{:.3g}"),
                _number(_ratio(each.launches, each.ticks), "{:.3g}"),
                _number(_ratio(each.device_seconds, wall), "{:.0%}"),
                _number(_ratio(each.peak_bytes, 1 << 20), "{:,.1f}"),
            )
        )
    return align(rows, width)


def _number(value: float | None, form: str) -> str:
    return _NONE if value is None else form.format(value)


def _ratio(value: float | None, by: float | None) -> float | None:
    return None if value is None or not by else value / by


def _agreements(result: BenchResult) -> Iterator[str]:
    what = "candidates" if result.unit == "candidate" else "numbers of the end state"
    equal: dict[str, list[str]] = {}
    for each in result.measurements:
        for agreement in each.agreements:
            if agreement.num_differing:
                yield (
                    f"{each.name:<16} {agreement.num_differing:,} of {agreement.num_compared:,} {what} differ from"
                    f" {agreement.against}; {agreement.example}"
                )
                continue
            text = f"{agreement.num_compared:,} {what} as {agreement.against}"
            if agreement.num_near_ties:
                text += f", {agreement.num_near_ties:,} near-ties left out"
            if agreement.largest_gap:
                text += f", log-probabilities at most {agreement.largest_gap:.1e} nats apart"
            equal.setdefault(text, []).append(each.name)
    for text, names in equal.items():
        yield f"{'agreed':<16} {', '.join(names)}: {text}"


def _comparison_row(row: Comparison) -> Row:
    number: Callable[[float | None], str] = lambda value: "" if value is None else f"{value:.3f}"  # noqa: E731  a type and a body on one line
    band = "" if row.low is None else f"{number(row.low)} to {number(row.high)}"
    change = row.change.value.upper() if row.change is Change.SLOWER else row.change.value
    return f"  {row.name}", change, number(row.ratio), band, row.reason
