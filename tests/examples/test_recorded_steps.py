"""Recorded steps become traces that hold every atom of the records, and nothing that the records do not hold."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from foreign_folder import FOLDER, needs_records
from invoked_commands import invoke

import kgverify as kv
from kgverify.comparison.step_view import StepReader
from kgverify.trace.read.trace_file import TraceFile, read_trace

SCRIPT = Path(__file__).parents[2] / "examples" / "recorded_steps.py"
ENGINES = ("eager", "compiled_first", "compiled_later")


@pytest.fixture(scope="module")
def write_trace():
    spec = importlib.util.spec_from_file_location("recorded_steps", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.write_trace


def names_of_rows(program, rows):
    """The atoms of a record in names, by the description of its README: independent of the example."""

    def argument(value):
        return ("variable", value) if value > program["constant_no"] else program["constants"][value]

    atoms = []
    for predicate, first, second in rows:
        hole = (predicate, first, second) == (0, 0, 0)
        atoms.append(None if hole else (program["predicates"][predicate], argument(first), argument(second)))
    return atoms


def names_of_trace(trace, program, kind, atoms):
    """The atoms of a trace in names, with the kind as the atom that stands for it in the records."""

    def argument(value):
        return ("variable", program["variable_start"] - 1 - value) if value < 0 else trace.symbols.constants[value]

    listed = [None if p < 0 else (trace.symbols.predicates[p], argument(a), argument(b)) for p, a, b in atoms]
    terminal = [program["predicates"][program[name]] for name in ("true", "false", "endf")]
    return ([(terminal[kind - 1], "<PAD>", "<PAD>")] if kind else []) + listed


@needs_records
@pytest.mark.parametrize("kind", ["forced", "free"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("graph", ["family", "countries_s3"])
def test_every_atom_of_the_records_is_in_the_trace_and_nothing_else(tmp_path, write_trace, graph, engine, kind):
    write_trace(FOLDER, graph, engine, kind, tmp_path / "a.h5")
    trace, reader = read_trace(tmp_path / "a.h5"), None
    program = json.loads((FOLDER / f"program_{graph}.json").read_text())
    records = dict(np.load(FOLDER / f"{graph}.{engine}.{kind}.npz", allow_pickle=False))
    reader = StepReader(trace.columns)
    num = len(records["query"])
    assert len(trace.columns.steps.num_atoms) == num
    candidates, steps = trace.columns.candidates, trace.columns.steps
    owner = np.repeat(np.arange(len(candidates.query)), candidates.num_steps)
    np.testing.assert_array_equal(candidates.query[owner], records["query"])
    np.testing.assert_array_equal(steps.depth, records["step"])
    np.testing.assert_array_equal(steps.choice, records["action"])
    for row in range(num):
        view = reader.read(row)
        state = records["state_atoms"][records["state_ptr"][row] : records["state_ptr"][row + 1]].tolist()
        assert names_of_trace(trace, program, 0, view.goal) == names_of_rows(program, map(tuple, state))
        first, last = records["derived_ptr"][row : row + 2].tolist()
        assert len(view.resolvents) == max(last - first, records["count"][row])
        for made, j in zip(view.resolvents, range(first, last), strict=False):
            rows = records["derived_atoms"][records["derived_atom_ptr"][j] : records["derived_atom_ptr"][j + 1]]
            wanted = names_of_rows(program, map(tuple, rows.tolist()))
            assert sorted(map(str, names_of_trace(trace, program, made.kind, made.atoms))) == sorted(map(str, wanted))
    unknown = {"resolvents.score", "resolvents.origin", "resolvents.origin_kind", "candidates.is_limited"}
    unknown |= {"candidates.log_probability", "steps.dropped_atoms", "steps.dropped_resolvents"}
    unknown |= {"candidates.outcome", "steps.outcome"} if kind == "forced" else set()
    assert not unknown & trace.fields
    header = trace.header
    assert header.limits.unknown == (("max_depth",) if kind == "forced" else ()) + (
        "max_atoms",
        "exclude_query",
        "dialect",
    )
    assert (header.limits.max_resolvents, header.program_sha256, trace.rankings) == (program["cap"], "", None)
    assert (header.engine.name, header.engine.variables) == (engine, "own")
    assert (len(trace.facts), len(trace.rules)) == (len(program["facts"]), len(program["rules"]))
    assert header.run.graph == ""
    if kind == "free":
        is_proved = records["success"][np.append(np.flatnonzero(np.diff(records["query"])), num - 1)] == 1
        np.testing.assert_array_equal(candidates.outcome == 1, is_proved)


@needs_records
def test_the_traces_of_one_kind_can_be_compared(tmp_path, write_trace):
    for engine in ENGINES[:2]:
        write_trace(FOLDER, "countries_s3", engine, "forced", tmp_path / engine)
    report = kv.compare(tmp_path / "eager", tmp_path / "compiled_first")
    assert report.verdict.value == "DIVERGE"
    assert report.coverage.candidates == report.coverage.steps == 507
    assert len(report.divergences) == 273
    assert TraceFile(tmp_path / "eager").num_candidates == 507


@needs_records
def test_the_cap_of_an_engine_that_cannot_be_asked_is_said_by_the_commands_from_its_trace_alone(tmp_path, write_trace):
    for engine in ENGINES[:2]:
        write_trace(FOLDER, "countries_s3", engine, "forced", tmp_path / f"{engine}.h5")
    sides = [str(tmp_path / f"{engine}.h5") for engine in ENGINES[:2]]
    run = str(tmp_path / "run")
    assert invoke(["diff", *sides, "--save", run]).exit_code == 1
    explained = invoke(["show", run, "--explain"])
    assert explained.exit_code == 0
    # The engine matches 50 facts; the records hold none at positions 19 to 52.
    sentence = (
        "in this run, the facts at position 53 or later (from 0) in their predicate's segment are missing: 1,079 of 1,079"
        ' missing, 0 of 4 present; the true bound of "position in its predicate\'s segment" may be any'
        " from 20 to 53: nothing between 19 and 53 was seen"
    )
    assert sentence in " ".join(explained.output.split())
    assert any(sentence in cause.condition for cause in kv.compare(*sides).causes)


def test_what_is_malformed_in_the_records_is_so_in_the_trace(tmp_path, write_trace):
    """A hole, TRUE with atoms left, a terminal action, a count that is larger than the list."""
    program = {
        "padding_idx": 0,
        "constant_no": 2,
        "variable_start": 3,
        "true": 2,
        "false": 3,
        "endf": 4,
        "predicates": ["<PAD>", "p", "True", "False", "Endf"],
        "constants": ["<PAD>", "a", "b"],
        "facts": [[1, 1, 2]],
        "rules_index": {"heads": [[1, 4, 3]], "bodies": [[[1, 3, 4], [0, 0, 0]]], "lens": [1]},
        "queries": [[1, 1, 2]],
        "policy": "first",
        "cap": 120,
        "max_depth": 10,
    }
    (tmp_path / "program_toy.json").write_text(json.dumps(program))
    np.savez(
        tmp_path / "toy.mine.forced.npz",
        query=np.array([0]),
        step=np.array([0]),
        state_atoms=np.array([[1, 1, 2]]),
        state_ptr=np.array([0, 1]),
        derived_ptr=np.array([0, 3]),
        derived_atom_ptr=np.array([0, 2, 4, 5]),
        derived_atoms=np.array([[0, 0, 0], [1, 5, 3], [1, 1, 2], [2, 0, 0], [4, 0, 0]]),
        count=np.array([4]),
        action=np.array([-1]),
        done=np.array([-1]),
        success=np.array([-1]),
    )
    write_trace(tmp_path, "toy", "mine", "forced", tmp_path / "a.h5")
    view = StepReader(read_trace(tmp_path / "a.h5").columns).read(0)
    assert [each.content for each in view.resolvents] == [
        (0, ((-1, 0, 0), (1, -3, -1))),
        (1, ((1, 1, 2),)),
        (3, ()),
        (0, ()),
    ]
    assert view.choice == -1
    assert read_trace(tmp_path / "a.h5").header.clauses.rules == ("p(X0, X1) <- p(X1, X0)",)
