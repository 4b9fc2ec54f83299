"""The runs of `rendered_runs`, and the reports of `filled`, with their renderings."""

import csv
import json
import shutil
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from filled import NUM_CAUSES, fill_report, without_causes
from invoked_commands import invoke
from readers import READERS
from reading import Read, derive, read_lines
from rendered_runs import RUNS

FILLED: Final = tuple(f"filled {number}" for number in range(3))
MANY: Final = "many causes"
OLD: Final = "without causes"
TERMINAL: Final = {"FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": "", "GITHUB_STEP_SUMMARY": ""}


class Rendered:
    """A saved run with its report as JSON, its candidates, and its renderings. made: the report that the run returned."""

    def __init__(self, folder: Path, made: Any = None) -> None:
        self.folder, self.made = folder, made
        self.report: dict[str, Any] = json.loads((folder / "report.json").read_text("utf-8"))

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """The renderings by name."""
        return {name: self.render(name) for name in READERS}

    def render(self, rendering: str, width: int = 5000) -> str:
        """Return a rendering of the report that is saved now. width: that of the terminal."""
        options = {"terminal": [], "explain": ["--explain"], "github": ["--github"]}.get(
            rendering, [f"--{rendering}", "-"]
        )
        words = ["show" if rendering == "explain" else "report", self.folder, *options]
        done = invoke(words, **TERMINAL, COLUMNS=f"{width}")
        assert done.exit_code == 0, done.stderr
        return done.stdout

    @cached_property
    def candidates(self) -> Sequence[Mapping[str, str]]:
        """The candidates of the expected trace, as exported."""
        return self.export("expected", "candidates")

    def export(self, side: str, table: str) -> list[dict[str, str]]:
        """Return the rows of a table of a trace, exported as CSV."""
        path = self.folder.with_name(f"{self.folder.name}-{side}-{table}.csv")
        done = invoke(["trace", "export", self.folder / f"{side}.h5", "--table", table, "--to", path])
        assert done.exit_code == 0, done.stderr
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def read(self, rendering: str) -> Read:
        """Read a rendering back."""
        lines = READERS[rendering](self.texts[rendering])
        return read_lines(
            rendering, lines, self.report | {"counted": derive(self.report, self.folder, self.candidates)}
        )

    def render_other(self, report: Mapping[str, Any], rendering: str) -> str:
        """Return a rendering of another report about the same traces."""
        path = self.folder / "report.json"
        own = path.read_bytes()
        path.write_text(json.dumps(report))
        try:
            return self.render(rendering)
        finally:
            path.write_bytes(own)

    def copied(self, report: Mapping[str, Any], name: str) -> "Rendered":
        """Return a saved run with the same traces and another report."""
        folder = self.folder.with_name(name)
        shutil.copytree(self.folder, folder)
        (folder / "report.json").write_text(json.dumps(report))
        return Rendered(folder)


class Renderings:
    """All saved runs, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, dict[str, Rendered]()

    def __getitem__(self, name: str) -> Rendered:
        if name not in self._made:
            if name in RUNS:
                self._made[name] = Rendered(self._folder / name, RUNS[name](self._folder / name))
            else:
                real = self["tensors"]
                number = FILLED.index(name) if name in FILLED else 1
                report = fill_report(number, real.report, 21 if name == MANY else NUM_CAUSES)
                self._made[name] = real.copied(without_causes(report) if name == OLD else report, name)
        return self._made[name]
