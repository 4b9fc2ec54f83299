"""The native evaluator: close choices are made again in float64, and its library is compiled, kept and checked."""

import _ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_checks import Known, assert_same, candidates_of, program_of

from kgverify import EngineInfo, Evaluator, Limits, Policy, UserError, Verdict, load_graph
from kgverify.api.inputs import require_trial
from kgverify.engines.policy import SHORTEST, make_two_tower
from kgverify.engines.table import Built
from kgverify.prover.native import library
from kgverify.prover.native.engine import NativeEngine
from kgverify.threads import count_threads
from kgverify.trace.model.columns import starts_of
from kgverify.trace.model.digests import compute_sequence

pytestmark = pytest.mark.skipif(library.why_not_available() is not None, reason=str(library.why_not_available()))

LENGTH = 16
"""The constants of the chains between which scores decide."""


def close_choices() -> Known:
    """Return a network of three blocks, and twins among the constants that float32 cannot tell apart."""
    links = [(f"a{i}", f"a{to}") for i in range(LENGTH) for to in (i + 1, i + 2, i - 3) if 0 <= to < LENGTH]
    for i in range(LENGTH - 1):
        for of in "bc":
            links += [(f"{of}{i}", f"{to}{i + 1}") for to in "bc"] + [(f"{of}{i}", "b0")] * (i % 3 > 0)
    ends = [(f"{of}{i}", f"a{to}") for of in "ab" for i in range(LENGTH) for to in range(i % 2, LENGTH, 4)]
    facts = " ".join([f"links({a},{b})" for a, b in links] + [f"ends({a},{b})" for a, b in ends])
    # Its resolvent has nine variables.
    loose = "links(X,U) ends(A,B) ends(C,D) ends(E,F) ends(G,H)"
    along = "leads(X,Y) links(X,Z) leads(Z,Y)"
    rules = f"{along}; leads(X,Y) links(X,Z) ends(Z,Y); {along}; leads(X,Y) {loose}; long(X,Y) {loose} ends(X,Y);"
    rules += "long(X,Y) leads(X,Y); many(X,Y) leads(X,Y); many(X,Y) leads(X,Y) links(X,U)"
    queries = " ".join(f"{('leads', 'long', 'many')[i % 3]}(a{i % 7},a{i * 5 % LENGTH})" for i in range(6))
    queries += " leads(b0,a5) leads(b1,a2) leads(b2,a5)"
    program = program_of(facts, rules, queries)
    limits = Limits(max_depth=8, max_atoms=5, max_resolvents=4)
    policy = make_two_tower(program, limits, seed=163, embedding=12, hidden=24, blocks=3)
    constants, ids = policy.weights["embedding.constant"].astype(np.float64), program.symbols.constant_ids
    apart = np.random.default_rng(5).standard_normal((LENGTH, 12)) * 1e-7
    for i in range(LENGTH):
        constants[ids[f"c{i}"]] = constants[ids[f"b{i}"]] + apart[i]
    policy = Policy("two_tower", dict(policy.weights) | {"embedding.constant": constants})
    return Known(program, candidates_of(program, queries), limits, {}, policy)


def list_gaps(case: Known) -> list[float]:
    """Return the gap between the best resolvent and the next one that differs, for each choice."""
    steps, resolvents = case.expected.steps, case.expected.resolvents
    score, first = resolvents.score, starts_of(steps.num_resolvents)
    atoms = [each.tobytes() for each in np.split(resolvents.atoms, np.cumsum(resolvents.num_atoms)[:-1])]
    gaps = []
    for rows in map(range, first[:-1], first[1:]):
        best = max(rows, key=score.__getitem__)
        if len(rows) > 1:
            gaps.append(min((score[best] - score[row] for row in rows if atoms[row] != atoms[best]), default=np.inf))
    return gaps


@pytest.mark.parametrize("copies", [1, 40])
def test_close_choices_are_counted_and_made_again_in_float64(copies: int) -> None:
    case = close_choices()
    engine = NativeEngine(case.program, case.limits, case.policy, threads=4)
    margin = 2 * engine.info.score_error
    gaps = list_gaps(case)
    num_close = sum(gap <= margin for gap in gaps)
    assert 5 < num_close < len(gaps)
    assert not any(margin / 2 < gap < 2 * margin for gap in gaps)
    assert_same(case.expected, engine.prove(case.candidates), engine.info.score_error)
    # Many candidates are proved by several threads.
    rows = np.tile(np.arange(len(case.candidates.query)), copies)
    found = engine.evaluate(case.candidates.take(rows), has_digests=True)
    assert (found.num_choices, found.num_rescored) == (copies * len(gaps), copies * num_close)
    assert found.smallest_gap == pytest.approx(min(gaps), abs=margin)
    words = compute_sequence(case.expected).tolist()
    assert found.digests.digests.sequence.tolist() == words * copies


def test_as_many_threads_run_as_there_are_cores_unless_another_number_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, wanted in (("3", 3), ("0", 5), ("many", 5), ("", 5)):
        monkeypatch.setenv("OMP_NUM_THREADS", given)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(5), raising=False)
        assert count_threads() == wanted
    # Some systems do not tell the cores of a process.
    monkeypatch.delattr(os, "sched_getaffinity")
    for found, wanted in ((7, 7), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda found=found: found)
        assert count_threads() == wanted


compiled: list[Path] = []


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of libraries that does not exist yet, and a compiler that copies some library."""
    monkeypatch.setenv(library.LIBRARIES, str(tmp_path / "libraries"))
    compiled.clear()

    def copy(compiler: str, into: Path) -> Path:
        compiled.append(into)
        return Path(shutil.copy(_ctypes.__file__, into / "prover.so"))

    monkeypatch.setattr(library, "_compile", copy)
    return tmp_path / "libraries"


def load_again() -> None:
    library.load_library.__wrapped__()


def test_a_library_is_compiled_once_and_kept_for_its_owner_only(kept: Path) -> None:
    load_again()
    load_again()
    assert len(compiled) == 1
    assert kept.stat().st_mode & 0o777 == 0o700
    (path,) = kept.glob("*.so")
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    load_again()
    assert len(compiled) == 2, "a changed library is not loaded"
    path.chmod(0o666)
    load_again()
    assert len(compiled) == 3, "nor one that others can write"
    for mode in (0o777, 0o775):
        kept.parent.chmod(mode)
        load_again()
    assert len(compiled) == 5, "nor one in a folder in one that others can write"
    kept.parent.chmod(0o700)


@pytest.mark.parametrize("mode", [0o777, 0o775, None])
def test_a_folder_that_others_can_write_and_a_link_are_not_used(kept: Path, tmp_path: Path, mode: int | None) -> None:
    if mode is None:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        kept.symlink_to(tmp_path / "elsewhere")
    else:
        kept.mkdir()
        kept.chmod(mode)
    load_again()
    load_again()
    assert len(compiled) == 2
    assert not list(kept.iterdir())


def test_libraries_are_kept_in_the_folder_that_is_named_or_beside_other_caches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for base, named, folder in (
        (tmp_path / "cache", None, tmp_path / "cache" / "native"),
        (None, "named", tmp_path / "named"),
        (None, None, None),
    ):
        monkeypatch.setattr(library, "find_cache", lambda base=base: base)
        monkeypatch.setenv(library.LIBRARIES, str(tmp_path / named) if named else "")
        assert library._find_folder() == folder


def test_a_library_is_known_by_its_sources_its_compiler_and_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / name for name in ("cc", *library.SOURCES)]
    monkeypatch.setattr(library, "files", lambda _: tmp_path)
    for path in files:
        path.write_text("1")
    keys = [library._find_key(str(files[0])) for _ in range(2)]
    assert keys.pop() == keys[0]
    for path in files:
        path.write_text("2")
        keys.append(library._find_key(str(files[0])))
    monkeypatch.setattr(library, "OPTIONS", (*library.OPTIONS, "-g"))
    keys.append(library._find_key(str(files[0])))
    assert len({*keys}) == len(keys)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("touch prover.so", ""),
        ("echo 'x.cpp:1: error: no' >&2; touch prover.so; exit 1", "cc fails: x.cpp:1: error: no"),
        ("exit 4", "cc fails: exit code 4"),
        ("exit 0", "cc fails: exit code 0"),
    ],
)
def test_a_compiler_that_leaves_no_library_fails(script: str, message: str, tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    if message:
        with pytest.raises(UserError, match=message):
            library._compile(str(compiler), tmp_path)
    else:
        assert library._compile(str(compiler), tmp_path) == tmp_path / "prover.so"


def test_without_a_compiler_the_mode_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"no C\+\+ compiler") as caught:
        Evaluator(mode="native")(load_graph("countries").program, Limits(), SHORTEST)
    assert caught.value.where == "mode"


def test_the_oldest_libraries_are_removed(tmp_path: Path) -> None:
    built = tmp_path / "built"
    for number in range(library.MOST_KEPT + 3):
        built.write_bytes(bytes([number]))
        library._keep(tmp_path, f"key{number}", built)
        (kept,) = tmp_path.glob(f"key{number}-*.so")
        os.utime(kept, (number, number))
        assert len(list(tmp_path.glob("*.so"))) == min(number + 1, library.MOST_KEPT)


RUN = """
import sys
from pathlib import Path
import kgverify as kv
from kgverify.prover.native import library

library.files = lambda package: Path(sys.argv[1])
try:
    print(kv.evaluate("countries", kv.Evaluator(mode="native"), queries=2, corruptions=3).verdict.value)
except kv.UserError as error:
    print(error)
"""


def test_the_refusal_of_code_that_was_compiled_wrongly_names_the_first_divergence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    divergences = [SimpleNamespace(stage=stage, step=step) for stage, step in (("finish", 2), ("prune", 5))]
    report = SimpleNamespace(verdict=Verdict.DIVERGE, divergences=divergences)
    monkeypatch.setattr("kgverify.verification.verify.verify", lambda *given, **options: SimpleNamespace(report=report))
    built = Built("native library", "0" * 64, tmp_path / "library.tried")
    maker: Any = SimpleNamespace(find_built=lambda mode: built)
    with pytest.raises(UserError) as caught:
        require_trial(maker, EngineInfo("compiled", mode="native"))
    assert caught.value.message == (
        "the native library that this machine compiled differs from the reference on the graph countries, first in finish"
        " at step 2"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.deep
def test_a_library_that_was_compiled_wrongly_proves_nothing_for_a_user(tmp_path: Path) -> None:
    libraries = tmp_path / "libraries"
    libraries.mkdir(mode=0o700)
    for name in library.SOURCES:
        text = (Path(library.__file__).parent / name).read_text()
        (tmp_path / name).write_text(text.replace("depth >= limits.max_depth ?", "depth >= 2 ?"))
    environment = os.environ | {"KGVERIFY_LIBRARIES": str(libraries), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout for _ in range(2)
    )
    assert "the native library that this machine compiled differs from the reference" in first
    assert "finish" in first
    assert second == first
    assert not list(libraries.glob("*.tried"))
