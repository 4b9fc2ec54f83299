"""The defects of vector environments in docs/found.md: each script shows its own, with the versions that it names."""

import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from script_runner import RUN

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "examples" / "environments" / "found").glob("*.py"))
STAGES = {"reset", "observe", "mask", "choose", "transition", "reward", "end", "autoreset"}
ROW = re.compile(
    r"^\| ([^|]+) \| \[[^]]+\]\(\.\./examples/environments/found/(\w+\.py)\)[^|]* \| [^|]+ \| (\w+) \|$", re.MULTILINE
)


def name_versions(path: Path) -> list[str]:
    """Return the packages and versions that the first line of a script names."""
    return re.findall(r"([a-z0-9-]+ \d+(?:\.\d+)+)", path.read_text(encoding="utf-8").partition(": ")[0])


def list_obstacles(path: Path) -> list[str]:
    """Say why a script cannot run here: other versions, or packages that are not installed."""
    obstacles = []
    for name, version in (each.split(" ") for each in name_versions(path)):
        try:
            installed = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            installed = "not installed"
        obstacles += [f"{name} is {installed}, not {version}"] if installed != version else []
    text = path.read_text(encoding="utf-8")
    needed = {*re.findall(r"^ *(?:from|import) (\w+)", text, re.MULTILINE)}
    needed |= {"array_api_compat"} if "NumpyToTorch" in text else {"flax"} if "jax" in needed else set()
    return obstacles + [f"{name} is not installed" for name in sorted(needed) if importlib.util.find_spec(name) is None]


def test_the_page_lists_each_script_once_with_its_version_and_stage() -> None:
    rows = ROW.findall((ROOT / "docs" / "found.md").read_text(encoding="utf-8"))
    assert sorted(name for _, name, _ in rows) == [path.name for path in SCRIPTS]
    for library, name, stage in rows:
        path = ROOT / "examples" / "environments" / "found" / name
        assert name_versions(path)[0] == library, name
        assert stage in STAGES, name
        assert "kgverify" not in path.read_text(encoding="utf-8"), name
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 40, name


@pytest.mark.deep
@pytest.mark.parametrize("library", sorted({path.name.partition("_")[0] for path in SCRIPTS}))
def test_the_scripts_about_a_library_show_their_defects(library: str) -> None:
    obstacles = {path: list_obstacles(path) for path in SCRIPTS if path.name.startswith(f"{library}_")}
    paths = [str(path) for path, why in obstacles.items() if not why]
    if not paths:
        pytest.skip("; ".join(sorted({why for reasons in obstacles.values() for why in reasons})))
    command = [sys.executable, "-W", "ignore", "-c", RUN, *paths]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    results = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith('["')]
    assert [path for path, _, _ in results] == paths
    for path, code, output in results:
        assert (code, "expected: " in output, "found: " in output) == (1, True, True), (path, output)
