"""Measure what a run loads: `python tools/loaded.py`, with `--list` for every module.

The lines are those of the files of kgverify, kgreference and stepaudit that a comparison of two queries with the native
engine imports in a fresh process, and among them those of the modules in which it calls a function.
"""

import sys
from pathlib import Path
from types import CodeType, FrameType

CO_OPTIMIZED = 1
"""The flag of the code of a function; the code of modules and classes does not have it."""
PARTS = ("kgverify", "kgreference", "stepaudit")


def main() -> None:
    """Run the comparison, and print the lines and the modules."""
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_flags & CO_OPTIMIZED:
            called.add(frame.f_code)

    import kgverify as kv

    sys.setprofile(note)
    report = kv.verify("countries", kv.Evaluator(mode="native"), queries=2, corruptions=5)
    sys.setprofile(None)
    files = {code.co_filename for code in called}
    rows = []
    for name, module in sorted(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name.partition(".")[0] in PARTS and path is not None:
            rows.append((name, len(Path(path).read_text().splitlines()), path in files))
    for name, lines, has_run in rows if "--list" in sys.argv else ():
        sys.stdout.write(f"{lines:6,}  {'called' if has_run else 'loaded'}  {name}\n")
    sys.stdout.write(
        f"{report.verdict.value}: {sum(lines for _, lines, _ in rows):,} lines in {len(rows)} modules loaded,"
        f" {sum(lines for _, lines, has_run in rows if has_run):,} of them in modules in which a function ran\n"
    )


if __name__ == "__main__":
    main()
