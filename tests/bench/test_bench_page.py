"""docs/performance.md: its sizes are those of the code; its commands are understood."""

import re
import shlex
from pathlib import Path

from kgverify.bench import SIZES
from kgverify.cli.command_line import make_app
from kgverify.cli.output import take_settings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "performance.md").read_text(encoding="utf-8")


def test_the_sizes_are_those_of_the_code():
    table = PAGE.partition("| `--size` |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", table, re.MULTILINE)
    listed = {name: [float(cell.replace(",", "")) for cell in cells.split("|")] for name, cells in rows}
    assert listed == {name: [float(value) for value in size] for name, size in SIZES.items()}


def test_every_command_of_the_page_is_understood():
    app = make_app("bench")
    lines = [line for block in re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    assert len(lines) >= 4
    for line in lines:
        words = shlex.split(line, comments=True)
        assert words[:2] == ["kgverify", "bench"]
        app.parse_args(["bench", *take_settings(words[2:])])
    take_settings([])
