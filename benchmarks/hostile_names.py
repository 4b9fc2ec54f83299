"""Names of strangers through every command and format: what a CI runner would execute, and what nobody could see.

    python benchmarks/hostile_names.py                     # every name, each command line at one width
    python benchmarks/hostile_names.py --first 40 --names 5 --every-width

Each name stands in every text of a trace, a saved run, a reproducer and a graph, and is the name of files. The commands of
`tests/cli/hostile_output.py` show them, in each format; their output passes an implementation of the runner's parser, and a
scanner for characters without a glyph. The widths 45, 80 and 200, a terminal and a pipe, and a job of GitHub and none take
turns, or are all tried with `--every-width`. Prints a Markdown table; exit code 1 if anything was found.
"""

import argparse
import itertools
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cli"))

from hostile_output import (
    CASES,
    NAMES,
    Case,
    judge_case,
    record_once,
    refused_lines,
    strange_lines,
    write_run,
    write_strange_files,
)

WAYS = tuple(itertools.product((45, 80, 200), (False, True), (False, True)))
"""Widths, whether the output is a terminal, and whether the job is one of GitHub."""


def main() -> int:
    """Run the grid."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--first", type=int, default=0, help="the number of the first name")
    parser.add_argument("--names", type=int, default=len(NAMES), help="how many of the names")
    parser.add_argument(
        "--every-width", action="store_true", help="all widths and kinds of output for each command line"
    )
    parser.add_argument("--engines", type=int, default=3, help="names for which engines run as well")
    arguments = parser.parse_args()
    names = NAMES[arguments.first :][: arguments.names]
    once = record_once()
    lines, outputs, codes = Counter[str](), Counter[str](), Counter[int]()
    found: dict[str, Counter[str]] = {kind: Counter() for kind in ("command", "hidden", "forged")}
    ways, started = itertools.cycle(WAYS), time.perf_counter()

    def try_case(case: Case, group: str, folder: Path, name: str) -> None:
        lines[group] += 1
        for width, is_terminal, is_github in WAYS if arguments.every_width else (next(ways),):
            settings: dict[str, Any] = {"width": width, "is_terminal": is_terminal, "is_github": is_github}
            done, findings = judge_case(case, folder, **settings)
            outputs[group] += 1
            codes[done.code] += 1
            for kind in {each.kind for each in findings}:
                found[kind][group] += 1
            if findings or done.code == 70:
                print(f"{case.words} of {name!r}: exit code {done.code}, {findings[:3]}", file=sys.stderr)

    for number, name in enumerate(names):
        with tempfile.TemporaryDirectory() as path:
            folder = Path(path)
            write_run(once, name, folder)
            for group, cases in CASES.items():
                for case in cases:
                    if case.is_fast or number < arguments.engines:
                        try_case(case, group, folder, name)
            for words in strange_lines(write_strange_files(folder, name)):
                try_case(Case(words), "files with strange names", folder, name)
            for words in refused_lines(name):
                try_case(Case(words), "refused command lines", folder, name)

    print(f"{len(names)} names, {time.perf_counter() - started:,.0f} s\n")
    print("| command | command lines | outputs | with runner commands | with hidden characters | with forged lines |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for group in lines:
        cells = " | ".join(str(found[kind][group]) for kind in found)
        print(f"| {group} | {lines[group]} | {outputs[group]} | {cells} |")
    total = " | ".join(str(counts.total()) for counts in found.values())
    print(f"| all | {lines.total()} | {outputs.total()} | {total} |")
    print(f"\nexit codes: {', '.join(f'{code}: {num:,}' for code, num in sorted(codes.items()))}")
    return int(any(counts.total() for counts in found.values()) or bool(codes[70]))


if __name__ == "__main__":
    sys.exit(main())
