"""A newcomer's pass through the site, to the letter: a new environment, then every command of two pages.

    python benchmarks/newcomer.py FOLDER

The pages are the tutorial and Verify your own engine; the folder must not exist. Prints a Markdown table of the commands with
their exit codes, seconds, and seconds of CPU time, then the seconds from the end of the installation to the bug of the own
engine. The exit code is 1 if a command ends otherwise than its page says.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OWN_BUG = "kgverify fuzz --engine my_engine.py:my_engine"
BLOCK = re.compile(r"(?:<!-- (?P<note>[^>]*) -->\n)?```(?P<kind>\w+)\n(?P<text>.*?)```", re.DOTALL)


def blocks_of(page: str) -> list[dict[str, str | None]]:
    """List the blocks of a page with the comment above each."""
    return [match.groupdict() for match in BLOCK.finditer((ROOT / "docs" / page).read_text(encoding="utf-8"))]


def follow(page: str, command: str, folder: Path, expected: int | None = 0) -> tuple[float, bool]:
    """Run a command as the newcomer would, print its row, and return its seconds and whether it ended as it should."""
    activated = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    activated |= {"PATH": f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}", "KGVERIFY_CACHE": str(folder / "cache")}
    started, before = time.perf_counter(), os.times()
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=activated, capture_output=True, text=True, check=False
    )
    seconds, after = time.perf_counter() - started, os.times()
    processor = after.children_user + after.children_system - before.children_user - before.children_system
    shown = command.replace(str(ROOT), "./checkout").replace("|", "\\|")
    print(f"| {page} | `{shown}` | {done.returncode} | {seconds:.1f} | {processor:.1f} |", flush=True)
    is_right = expected is None or done.returncode == expected
    if not is_right:
        print(done.stdout, done.stderr, sep="\n")
    return seconds, is_right


def main() -> int:
    """Follow the pages."""
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir()
    print("| page | command | exit code | seconds | CPU seconds |\n|---|---|---|---|---|")
    install = (
        "python3 -m venv .venv",
        f"pip install '{ROOT}[compiled]'",
        "kgverify --version",
        "kgverify doctor",
        "pip check",
    )
    ends = [follow("Install", command, folder) for command in install]
    installed, found, to_bug = sum(seconds for seconds, _ in ends), 0.0, 0.0
    engine, repair = (block["text"] or "" for block in blocks_of("tutorial.md") if block["kind"] == "python")
    (folder / "my_engine.py").write_text(engine, encoding="utf-8")
    for block in blocks_of("tutorial.md"):
        for line in (block["text"] or "").splitlines() if block["kind"] == "console" else ():
            ends.append(follow("Tutorial", line, folder))
            found += ends[-1][0]
            if OWN_BUG in line and not to_bug:
                to_bug = found
    repaired = re.sub(r"def bind\(.*?\n\n\n", f"{repair}\n\n", engine, flags=re.DOTALL)
    (folder / "my_engine.py").write_text(repaired, encoding="utf-8")
    ends.append(follow("Tutorial", f"{OWN_BUG} --examples 64 --jobs 1", folder))
    for block in blocks_of("your-engine.md"):
        note = block["note"] or ""
        if note.startswith("file: "):
            (folder / note.removeprefix("file: ")).write_text(block["text"] or "", encoding="utf-8")
        elif note.startswith("exit: "):
            *others, last = (block["text"] or "").splitlines()
            ends += [follow("Your engine", line, folder) for line in others]
            ends.append(follow("Your engine", last, folder, int(note.removeprefix("exit: "))))
    size = sum(path.lstat().st_size for path in (folder / ".venv").rglob("*") if path.is_file()) / (1 << 20)
    print(f"\ninstallation {installed:.0f} s, {size:,.0f} MiB; from there to the bug of the own engine {to_bug:.0f} s")
    return int(not all(is_right for _, is_right in ends))


if __name__ == "__main__":
    sys.exit(main())
