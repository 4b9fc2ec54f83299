"""docs/benchmarking.md: its sizes, states and columns are those of the code; its commands are understood."""

import re
import shlex
from pathlib import Path

from bench_runs import made_result, timed

from kgverify.bench.compare import ASPECTS
from kgverify.bench.plan import SIZES
from kgverify.bench.table import render_result
from kgverify.cli.command_line import make_app
from kgverify.cli.output import take_settings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "benchmarking.md").read_text(encoding="utf-8")


def rows_of(heading: str) -> list[list[str]]:
    """The cells of the first table under a heading."""
    part = PAGE.split(f"## {heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", part, re.MULTILINE)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_the_sizes_are_those_of_the_code():
    told = {row[0].strip("`"): [float(cell.replace(",", "")) for cell in row[1:6]] for row in rows_of("Sizes")}
    assert told == {name: [float(value) for value in size] for name, size in SIZES.items()}


def test_every_column_that_is_printed_is_explained():
    explained = " ".join(row[0] for row in rows_of("Columns"))
    printed = render_result(made_result(timed("eager", 1.0, 2.0)))
    heads = [re.split(r"  +", line) for line in printed if line.startswith(("steady state", "warm-up"))]
    assert len(heads) == 2
    for name in (cell for head in heads for cell in head[1:]):
        assert name in explained or name in ("launches/candidate", "/tick"), name


def test_every_aspect_is_named():
    assert all(f"`{aspect}`" in PAGE or f"--across {aspect}" in PAGE for aspect in ASPECTS)


def test_every_command_of_the_page_is_understood():
    app = make_app("bench")
    lines = [line for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    lines += re.findall(r"`(kgverify bench .*?)`", PAGE)
    assert len(lines) >= 7
    for line in lines:
        words = shlex.split(line, comments=True)
        assert words[:2] == ["kgverify", "bench"]
        app.parse_args(["bench", *(word for word in take_settings(words[2:]) if word != "PATH")])
