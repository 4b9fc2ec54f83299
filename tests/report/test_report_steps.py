"""A step of both sides: derivations and stages side by side, proof trees, and what a trace does not hold."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoked_commands import invoke
from report_runs import SavedRun, change

import kgverify as kv
from kgverify.dialects import ReferenceEngine

RUN = {"queries": 1, "corruptions": 2}
OVERWRITE = kv.RecordingOptions(overwrite=True)
ORIGINS = ("resolvents.origin", "resolvents.origin_kind")
RULE = "locatedInCR(X, Z) <- neighborOf(X, Y), locatedInCR(Y, Z) [rules.txt:1]"

Edit = Callable[[kv.Columns], kv.Columns]


def show(folder: Path, number: int = 1) -> dict[str, Any]:
    """Return the step of a divergence as `kgverify show` writes it."""
    return json.loads(invoke(["show", folder, "--divergence", number, "--json", "-"], COLUMNS="120").stdout)


def type_keys(folder: Path, *keys: str) -> list[str]:
    """Return the first view of `kgverify show`, and the one after each key."""
    return invoke(["show", folder], typed="\n".join([*keys, ""]), COLUMNS="150").stdout.split("\n> ")


def culprits(shown: dict[str, Any]) -> list[str]:
    return [line["stage"] for line in shown["stages"] if line["is_culprit"]]


def add(level: str, field: str, index: int, value: Any) -> Edit:
    """Add to one value of a column."""

    def edit(columns: kv.Columns) -> kv.Columns:
        rows = getattr(columns, level)
        values = getattr(rows, field).copy()
        values[index] += value
        return columns._replace(**{level: rows._replace(**{field: values})})

    return edit


def take(*places: int) -> Edit:
    """Replace the three resolvents of the first step by the ones at some places."""

    def edit(columns: kv.Columns) -> kv.Columns:
        old, num_resolvents = columns.resolvents, columns.steps.num_resolvents.copy()
        assert num_resolvents[0] == 3
        rows = [*places, *range(3, len(old.kind))]
        atoms = np.split(old.atoms, np.cumsum(old.num_atoms)[:-1])
        taken = {name: getattr(old, name)[rows] for name in old._fields if name != "atoms"}
        resolvents = old._replace(**taken, atoms=np.concatenate([atoms[row] for row in rows]))
        num_resolvents[0] = len(places)
        return columns._replace(steps=columns.steps._replace(num_resolvents=num_resolvents), resolvents=resolvents)

    return edit


@pytest.fixture
def save_edited(tmp_path: Path) -> Callable[..., Path]:
    """A function that saves a comparison of the reference with itself, edited, and without some fields of the traces."""

    def save(edit: Edit = lambda columns: columns, lost: Sequence[str] = ()) -> Path:
        class Edited(ReferenceEngine):
            def prove(self, *given: Any) -> kv.Columns:
                return edit(super().prove(*given))

        traces = []
        for name, engine in (("a.h5", "reference"), ("b.h5", Edited)):
            kv.record("countries", tmp_path / name, engine, **RUN, options=OVERWRITE)
            traces.append(kv.open_trace(tmp_path / name).load())
        traces[1] = replace(traces[1], fields=traces[1].fields - {*lost})
        kv.compare(*traces, save=tmp_path / "run")
        return tmp_path / "run"

    return save


def test_of_many_resolvents_the_culprit_and_the_chosen_stay(hostile: SavedRun):
    derivation = show(hostile.folder)["derivation"]
    pairs = derivation["pairs"]
    shown = [pair for pair in pairs if pair["mark"] != "hidden"]
    assert len(shown) == 40
    assert any(pair["is_culprit"] for pair in shown)
    lines = [pair[side] for pair in shown for side in ("expected", "actual") if pair[side]]
    assert sum(line["is_chosen"] for line in lines) == 2
    # No resolvent is on both sides, so that each line differs.
    (num,) = (fact for fact in derivation["facts"] if fact["name"] == "resolvents")
    num_lines = int(num["expected"]) + int(num["actual"])
    assert len(shown) + sum(pair["num_hidden"] for pair in pairs) == num_lines
    assert sum(pair["mark"] != "same" for pair in shown) + sum(pair["num_differing"] for pair in pairs) == num_lines


def test_in_lockstep_the_saved_steps_show_both_sides_of_every_divergence(in_lockstep: SavedRun):
    num = len(in_lockstep.report.divergences)
    assert num > 40
    for number in range(1, num, num // 9):
        found = show(in_lockstep.folder, number)["derivation"]
        assert found["note"] == ""
        assert all(atoms["expected"] == atoms["actual"] for atoms in found["goals"])
        assert any(pair["mark"] == "missing" or pair["num_differing"] for pair in found["pairs"])
        assert [pair["is_culprit"] for pair in found["pairs"]].count(True) == 1


@pytest.mark.parametrize(
    ("edit", "culprit", "place"),
    [
        (add("steps", "outcome", 0, 1), "finish", 5),
        (add("steps", "choice", 0, 1), "choose", 4),
        (add("steps", "dropped_atoms", 0, 5), "limit", 2),
        (add("steps", "goal_atoms", 1, (0, 1, 0)), "(input)", "goal"),
        (add("resolvents", "score", 0, 99.0), "score", "score"),
        (add("resolvents", "origin", 0, 2), "match_rules", "missing"),
        (add("resolvents", "atoms", 0, (0, 1, 0)), "resolve", "changed"),
    ],
)
def test_what_is_read_off_two_traces_has_its_stage_and_the_arrow(save_edited, edit: Edit, culprit: str, place):
    shown = show(save_edited(edit))
    stages = {line["stage"]: line for line in shown["stages"]}
    assert culprits(shown) == [culprit]
    index = [*stages].index(culprit)
    marks = [line["mark"] for line in stages.values()]
    assert {*marks[:index]} <= {"agrees", "not held"}
    assert "differs" not in marks[index + 1 :]
    derivation = shown["derivation"]
    if isinstance(place, int):
        assert [fact["is_culprit"] for fact in derivation["facts"]].index(True) == place
    elif place == "goal":
        assert derivation["goal_is_culprit"]
        first, second = derivation["goals"]
        assert (first["expected"] != first["actual"], second["expected"]) == (True, second["actual"])
        assert stages["(input)"]["note"].startswith("the output of advance in the step before")
    else:
        assert [pair["mark"] for pair in derivation["pairs"] if pair["is_culprit"]] == [place]


def test_behind_another_choice_differences_are_consequences(save_edited):
    at_choice, behind = type_keys(save_edited(add("steps", "choice", 0, 1)), "f")
    assert "diverged before this step" not in at_choice
    assert "The two derivations diverged before this step: differences here are consequences." in behind


@pytest.mark.parametrize(
    ("places", "marks"),
    [
        ((0, 0, 1, 2), ["same", "extra", "same", "same"]),
        ((0, 2), ["same", "missing", "same"]),
        ((1, 0, 2), ["moved", "same", "moved", "same"]),
    ],
)
def test_resolvents_are_aligned_and_an_extra_one_of_equal_ones_has_not_moved(save_edited, places, marks: list[str]):
    found = show(save_edited(take(*places)))["derivation"]["pairs"]
    assert sorted(pair["mark"] for pair in found) == sorted(marks)


@pytest.mark.parametrize(("change", "texts"), [(-1e-7, ["-1.0", "-1.0000001"]), (-0.25, ["-1", "-1.25"])])
def test_scores_that_look_alike_and_differ_are_written_out(save_edited, change: float, texts: list[str]):
    (pair,) = (
        p for p in show(save_edited(add("resolvents", "score", 3, change)))["derivation"]["pairs"] if p["is_culprit"]
    )
    assert (pair["mark"], [pair[side]["score"] for side in ("expected", "actual")]) == ("score", texts)


def test_a_step_that_agrees_agrees_in_every_stage_that_both_traces_hold(save_edited):
    not_held = {"select", "prune", "revisit"}
    for lost in ((), (*ORIGINS, "steps.dropped_atoms", "steps.dropped_resolvents")):
        _, before = type_keys(save_edited(add("steps", "outcome", 1, 1), lost), "b")
        lines = [line.split() for line in before[before.index("stage by stage") :].splitlines()[1:] if line.strip()]
        marks = {line[0]: line[1] for line in lines}
        assert set(marks.values()) == {"agrees", "not"}
        assert {stage for stage, mark in marks.items() if mark == "not"} >= not_held
        assert marks["choose"] == "agrees"
        not_held |= {"match_rules", "match_facts", "limit"}


def test_what_ran_beside_a_step_stands_after_its_stages(faulty: SavedRun):
    first = change(faulty.report.divergences[0], stage="recycle", field="resolvents.atoms", is_replayed=True)
    for each, stages in ((first, 15), (change(first, step=2, field="candidates.num_steps"), 1)):
        report = change(faulty.report, first_cause=each, divergences=(each, *faulty.report.divergences[1:]))
        shown = show(faulty.with_report(report))
        assert culprits(shown) == ["recycle"]
        assert len(shown["stages"]) == stages
        assert shown["stages"][-1]["stage"] == "recycle"
        assert stages == 1 or "the steps that run beside it" in shown["stages"][-1]["note"]
        assert "differs" not in [line["mark"] for line in shown["stages"][:-1]]


@pytest.mark.parametrize("depths", [(1, 4), (4, 1)])
def test_the_side_that_has_no_such_step_is_named(tmp_path: Path, depths: tuple[int, int]):
    traces = []
    for depth in depths:
        path = tmp_path / f"{depth}.h5"
        traces.append(kv.record("countries", path, "reference", **RUN, limits=kv.Limits(max_depth=depth)).path)
    report = kv.compare(*traces, save=tmp_path / "run")
    moved = change(report.divergences[0], step=1, field="candidates.num_steps")
    changed = change(report, first_cause=moved, divergences=(moved, *report.divergences[1:]))
    shorter = "expected" if depths[0] == 1 else "actual"
    folder = SavedRun(report, tmp_path / "run").with_report(changed)
    assert show(folder)["derivation"]["note"] == f"The {shorter} derivation has no such step."
    assert f"The {shorter} side has no such step." in type_keys(folder, "f")[1]


def test_the_atoms_of_a_clause_are_below_the_atom_that_it_resolved(faulty: SavedRun):
    _, view = type_keys(faulty.folder, "t")
    assert [line.rstrip()[4:] for line in view.splitlines() if line.startswith("    ")] == [
        f"step 0  locatedInCR(armenia, asia)   by {RULE}",
        "step 1    neighborOf(armenia, X0)   by fact neighborOf(armenia, iran) [train.txt:382]",
        f"step 2    locatedInCR(iran, asia)   by {RULE}",
        "step 3      neighborOf(iran, X0)   by fact neighborOf(iran, pakistan) [train.txt:625]",
        "a fact      locatedInCR(pakistan, asia)",
        f"step 0  locatedInCR(armenia, asia)   by {RULE}",
        "step 1    neighborOf(armenia, X0)   no clause",
        "open      locatedInCR(X0, asia)",
    ]


@pytest.mark.parametrize(
    ("edit", "lost", "text"),
    [
        # A rule with another number of atoms.
        (add("resolvents", "origin", 0, 1), (), "  actual\n    not determined by the steps that the trace contains\n"),
        (add("steps", "outcome", 0, 1), ORIGINS, "a tree would show no more than the steps"),
    ],
)
def test_what_the_steps_do_not_determine_has_no_tree(save_edited, edit: Edit, lost: tuple[str, ...], text: str):
    assert text in type_keys(save_edited(edit, lost), "t")[1]
