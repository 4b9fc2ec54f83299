"""Try the semantic wrong edits on pytest, and print how many it notices.

python tests/mutants/run_mutants.py --only 20 --seed 1 --jobs 2
python tests/mutants/run_mutants.py --list judge --tests tests/judge

Each edit is made in a copy of the checkout. The tests whose files are nearest to the edited module run first, then the
others, up to the first failure. A test that also fails without the edit does not count. The same command resumes.
"""

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import msgspec
from semantic_edits import LISTS, ROOT, EditError, Planted, SemanticEdit, Sources, read_lists

NUM_NEAREST: Final = 12
"""Test files that run before the others: they notice most edits, in a fraction of the time."""
SECONDS_PER_TEST: Final = 300
"""A test that takes longer is ended, and counts as failed: an edit can make a loop endless."""
COMMON_WORDS: Final = frozenset({"kgverify", "reference", "tests", "test", "py", "kgreference", "init"})
NO_TESTS: Final = 5
"""The exit code of pytest if every test is deselected."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The first test that fails with an edit, "" if all pass, and the `error` of an edit that does not apply."""

    digest: str
    edit: str
    by: str = ""
    error: str = ""


class Checkout:
    """A copy of the files of the checkout in which edits are tried one at a time; unchanged files are hard links."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self._temporary = folder / "temporary"
        self._temporary.mkdir(parents=True)
        for name in _git_files():
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(ROOT / name, target)

    def plant(self, planted: Planted) -> None:
        """Write an edited file."""
        path = self.root / planted.path.relative_to(ROOT)
        path.unlink()
        path.write_text(planted.text, encoding="utf-8")

    def restore(self, planted: Planted) -> None:
        """Undo an edit."""
        path = self.root / planted.path.relative_to(ROOT)
        path.unlink()
        _link(planted.path, path)

    def first_failure(self, tests: Sequence[str], markers: str, ignored: Sequence[str]) -> str:
        """Run tests up to the first failure; return its name, or "" if all pass."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", markers]
        command += ["-o", f"faulthandler_timeout={SECONDS_PER_TEST}", "-o", "faulthandler_exit_on_timeout=true"]
        command += [f"--deselect={test}" for test in ignored]
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self.root}{os.pathsep}{self.root / 'reference'}",
            "TMPDIR": str(self._temporary),
            "KGVERIFY_LIBRARIES": str(self._temporary / "libraries"),
        }
        done = subprocess.run(
            [*command, *tests], cwd=self.root, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode in (0, NO_TESTS):
            return ""
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
        return failed[1] if failed else f"pytest ended with {done.returncode}"


class Trials:
    """Tries edits in copies of the checkout, each of which serves one edit at a time."""

    def __init__(
        self, checkouts: Sequence[Checkout], original: Checkout, *, tests: Sequence[str], markers: str
    ) -> None:
        self._free: SimpleQueue[Checkout] = SimpleQueue()
        for checkout in checkouts:
            self._free.put(checkout)
        self._original, self._tests, self._markers = original, tests, markers
        self._lock = threading.Lock()
        self._fails_anyway: dict[str, bool] = {}
        self._sources = Sources()

    def judge(self, edit: SemanticEdit) -> Result:
        """Return whether pytest notices an edit."""
        try:
            planted = self._sources.plant(edit)
        except (EditError, SyntaxError) as error:
            return Result(digest=edit.digest, edit=str(edit), error=str(error))
        checkout = self._free.get()
        checkout.plant(planted)
        try:
            return Result(digest=edit.digest, edit=str(edit), by=self._noticed_by(checkout, edit, planted))
        finally:
            checkout.restore(planted)
            self._free.put(checkout)

    def _noticed_by(self, checkout: Checkout, edit: SemanticEdit, planted: Planted) -> str:
        if self._tests:
            rounds = [list(self._tests)]
        else:
            ordered = nearest_tests(str(planted.path.relative_to(ROOT)), edit.function)
            rounds = [ordered[:NUM_NEAREST], ordered[NUM_NEAREST:]]
        for tests in rounds:
            while True:
                ignored = [test for test, fails in self._fails_anyway.items() if fails]
                failed = checkout.first_failure(tests, self._markers, ignored)
                if not failed or not self._fails_without_edit(failed):
                    break
            if failed:
                return failed
        return ""

    def _fails_without_edit(self, test: str) -> bool:
        if "::" not in test and not test.endswith(".py"):
            return False
        with self._lock:
            if test not in self._fails_anyway:
                self._fails_anyway[test] = bool(self._original.first_failure([test], self._markers, []))
            return self._fails_anyway[test]


def nearest_tests(module: str, function: str) -> list[str]:
    """Return the test files, those first that import the module, name the function, or have words of its path."""
    words = _words(module)
    imported = module.removeprefix("reference/").removesuffix(".py").replace("/", ".")
    name = function.rpartition(".")[2]

    def distance(test: str) -> tuple[int, str]:
        text = (ROOT / test).read_text(encoding="utf-8")
        score = len(words & _words(test)) + 2 * (imported in text) + 2 * bool(name and name in text)
        return -score, test

    files = [each for each in _git_files("tests") if re.search(r"/test_\w+\.py$", each) and "/mutants/" not in each]
    return sorted(files, key=distance)


def _words(path: str) -> set[str]:
    return set(re.split(r"[/_.]", path)) - COMMON_WORDS


def _git_files(*folders: str) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [name for name in names if (ROOT / name).is_file()]


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _read_results(path: Path) -> Iterator[Result]:
    for line in path.read_bytes().splitlines() if path.exists() else []:
        try:
            yield msgspec.json.decode(line, type=Result)
        except msgspec.DecodeError:
            # The run was killed while it wrote this line.
            continue


def _print_score(results: Sequence[Result]) -> None:
    noticed = [each for each in results if each.by]
    tried = [each for each in results if not each.error]
    print(f"\n{len(noticed)} of {len(tried)} edits noticed")
    for each in results:
        if not each.by:
            print(f"{each.error or 'not noticed'}  {each.edit}")


def main() -> None:
    """Try the edits that have no result, and print the score."""
    options = _parse()
    edits = [each for each in read_lists(options.lists) if options.list in (None, each.list)]
    if options.only is not None:
        edits = random.Random(options.seed).sample(edits, min(options.only, len(edits)))
    results = {each.digest: each for each in _read_results(options.results)}
    left = [each for each in edits if each.digest not in results]
    markers = "not exhaustive" if options.deep else "not deep and not exhaustive"
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        checkouts = [Checkout(Path(name) / str(index)) for index in range(options.jobs if left else 0)]
        original = Checkout(Path(name) / "original")
        broken = original.first_failure(["--collect-only", *(options.tests or ["tests"])], markers, []) if left else ""
        if broken:
            raise SystemExit(f"the tests cannot be collected without an edit: {broken}")
        trials = Trials(checkouts, original, tests=options.tests or (), markers=markers)
        with ThreadPoolExecutor(options.jobs) as pool, options.results.open("ab") as file:
            for num, done in enumerate(as_completed([pool.submit(trials.judge, each) for each in left]), 1):
                result = done.result()
                results[result.digest] = result
                file.write(msgspec.json.encode(result) + b"\n")
                file.flush()
                print(f"{num}/{len(left)}  {result.edit}: {result.by or result.error or 'not noticed'}", flush=True)
    _print_score([results[each.digest] for each in edits])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", metavar="NAME", help="the name of one list; without it, every list is tried")
    parser.add_argument("--only", type=int, metavar="N", help="try N edits drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="run these tests only")
    parser.add_argument("--deep", action="store_true", help="run the deep tier as well")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--lists", type=Path, default=LISTS, metavar="FOLDER")
    parser.add_argument("--results", type=Path, default=Path("mutants.jsonl"), help="appended to; a later run resumes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
