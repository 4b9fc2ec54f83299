"""The architecture, as far as a syntax tree shows it: sizes, names, import circles, who imports what.

`.ci/lint` runs the linters, the type checker and the check that no import runs up a layer.
"""

import ast
import re
import sys
from functools import cache
from pathlib import Path

import kgreference
import kgverify
from kgverify.cli.entries import ENTRIES

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = [Path(package.__file__).parent for package in (kgverify, kgreference)]
MODULES = sorted(path for package in PACKAGES for path in package.rglob("*.py"))
NAMES_THAT_SAY_NOTHING = {
    "apart", "around", "common", "core", "counts", "helper", "helpers", "hunt", "known", "misc", "notes", "oddities",
    "pending", "place", "places", "presence", "shared", "team", "tools", "turns", "util", "utils", "views",
}  # fmt: skip
ROOTS_WITH_TORCH = (
    "kgverify.torch",
    "kgverify.prover",
    # Inside of functions only.
    "kgverify.api.doctor",
)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def module_name(path: Path) -> str:
    (root,) = (package.parent for package in PACKAGES if path.is_relative_to(package))
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


@cache
def import_graph() -> dict[str, set[str]]:
    """Return what each module imports, functions and type-checking blocks included: modules of ours, and packages."""
    paths = {module_name(path): path for path in MODULES}
    graph = {}
    for name, path in paths.items():
        found = set()
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{name} imports by a relative name"
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= (inner & paths.keys()) | ({node.module} if inner - paths.keys() else set())
        graph[name] = {each if each in paths else each.partition(".")[0] for each in found} - {name}
    return graph


def modules_with(package: str) -> list[str]:
    return [name for name, found in import_graph().items() if package in found]


def find_circles(graph: dict[str, set[str]]) -> set[str]:
    """Return the modules in circles, and those that import them: what is left without those that import none of the others."""
    left = dict(graph)
    while leaves := {name for name, found in left.items() if not found & left.keys()}:
        left = {name: found for name, found in left.items() if name not in leaves}
    return {*left}


def test_no_two_files_import_each_other_by_any_way_round():
    assert find_circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == {"a", "b", "c"}
    assert find_circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == set()
    assert find_circles(import_graph()) == set()


def test_packages_are_imported_where_they_belong():
    assert modules_with("h5py") == ["kgverify.trace.hdf5.reading", "kgverify.trace.hdf5.writing"]
    assert [name for name in modules_with("torch") if not name.startswith(ROOTS_WITH_TORCH)] == []
    assert "kgverify.prover.engine" in modules_with("torch")
    own = {*sys.stdlib_module_names, *import_graph(), "kgreference"}
    foreign = {name: found - own for name, found in import_graph().items() if name.startswith("kgreference")}
    expected = {f"kgreference.{name}": {"numpy"} for name in ("corrupt", "two_tower")}
    assert {name: found for name, found in foreign.items() if found} == expected


def test_a_command_a_reader_of_graphs_and_a_rendering_of_reports_are_reached_from_their_registries():
    reached = {f"kgverify.cli.{each.place.partition(':')[0]}" for each in ENTRIES.values()}.union(
        *import_graph().values()
    )
    folders = ("kgverify/cli/commands/", "kgverify/graphs/", "kgverify/report/")
    lost = [name_of(path) for path in MODULES if path.name != "__init__.py" and module_name(path) not in reached]
    lost = [name for name in lost if name.startswith(folders)]
    assert lost == [], "name it in kgverify/cli/entries.py or report/render/formats.py, or call it in graphs/triples.py"


def test_a_module_says_in_its_first_line_what_it_is_and_its_name_says_something():
    assert [name_of(path) for path in MODULES if not ast.get_docstring(parse(path))] == []
    named = {path: {*path.relative_to(ROOT).with_suffix("").parts} for path in MODULES}
    assert [name_of(path) for path, parts in named.items() if parts & NAMES_THAT_SAY_NOTHING] == []


def test_test_files_have_names_of_their_own():
    """pytest imports them by their base names."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert sorted(set(names)) == sorted(names)


def test_no_pattern_repeats_a_group_possessively():
    """Python 3.11.0 to 3.11.4 match `(?:...)*+` wrongly where the group can backtrack; `(?>(?:...)*)` is the same and right."""
    found = [name_of(path) for path in MODULES if re.search(r"\)[*+?]\+[^ =]", path.read_text(encoding="utf-8"))]
    assert not found
