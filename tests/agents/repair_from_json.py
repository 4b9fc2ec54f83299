"""Repair an engine with nothing but the JSON of kgverify: `python repair_from_json.py kgverify diff ... --json -`.

The script runs a command, follows `next`, restores the lines that it names from git, and asks again. It knows no engine,
and nothing of kgverify but `verdict` and `next`. It prints how many places it restored, as JSON.
"""

import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

MOST_COMMANDS = 6


def run(command: list[str]) -> Any:
    """Return the JSON that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.stdout else {}


def follow(found: Any) -> Iterator[tuple[str, int, int]]:
    """Yield the places that a result names, and those that the commands name to which it leads, the nearest first."""
    known, waiting = set(), [found]
    while waiting and len(known) < MOST_COMMANDS:
        steps = waiting.pop(0).get("next", [])
        yield from ((each["file"], each["line"], each["last_line"]) for each in steps if "file" in each)
        for command in (each["command"] for each in steps if each.get("command", [])[-2:] == ["--json", "-"]):
            if tuple(command) not in known:
                known.add(tuple(command))
                waiting.append(run(command))


def restore(file: str, first: int, last: int) -> bool:
    """Restore lines of a file from git; return whether they had been changed."""
    stored = subprocess.run(["git", "show", f"HEAD:{file}"], capture_output=True, text=True, check=True).stdout
    lines, path = stored.splitlines(keepends=True), pathlib.Path(file)
    now = path.read_text(encoding="utf-8").splitlines(keepends=True)
    is_changed = now[first - 1 : last] != lines[first - 1 : last]
    now[first - 1 : last] = lines[first - 1 : last]
    path.write_text("".join(now), encoding="utf-8")
    return is_changed


def repair(command: list[str]) -> dict[str, Any]:
    """Restore one named place after the other until the command reports AGREE."""
    found, tried = run(command), []
    result = {"before": found["verdict"], "code": [each["code"] for each in found["causes"]], "tried": tried}
    for place in follow(found):
        if place not in tried:
            tried.append(place)
            if restore(*place):
                break
    return result | {"after": run(command)["verdict"]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(repair(sys.argv[1:])) + "\n")
