"""Recorded steps of other people's engines, imported as traces and judged by the reference in a dialect that a file declares."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from foreign_folder import FOLDER, needs_records

import kgverify as kv
from kgverify.cli.app import run
from kgverify.dialects import Dialect, write_dialect

pytestmark = needs_records

SCRIPT = Path(__file__).parents[2] / "examples" / "recorded_steps.py"

EXPAND = Dialect(unification="one_pass", filters=("prune", "close", "max_resolvents"))
"""The dialect of what the engines record: the environment around them drops visited and long states later."""

GRAPHS = [pytest.param("countries_s3", marks=pytest.mark.deep), pytest.param("family", marks=pytest.mark.exhaustive)]


@pytest.fixture(scope="module")
def trace_of(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("recorded_steps", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path_factory.mktemp("traces")

    def write(graph: str, engine: str, kind: str) -> Path:
        path = folder / f"{graph}.{engine}.{kind}.h5"
        if not path.exists():
            module.write_trace(FOLDER, graph, engine, kind, path)
        return path

    return write


def found_in(report: kv.Report) -> Counter[str]:
    return Counter(each.kind.value for each in report.divergences)


@pytest.mark.parametrize("graph", GRAPHS)
def test_the_reference_judges_every_recorded_step_of_the_right_engine(trace_of, graph):
    sizes = {"countries_s3": ((507, 507), (44, 328)), "family": ((485, 485), (48, 287))}[graph]
    for kind, size in zip(("forced", "free"), sizes, strict=True):
        report = kv.compare("reference", trace_of(graph, "eager", kind), limits={"dialect": EXPAND})
        assert (report.verdict.value, report.modulo) == ("AGREE", ("names",)), report.reasons
        assert (report.coverage.candidates, report.coverage.steps) == size
        assert "resolvents.atoms" in report.coverage.fields


@pytest.mark.parametrize(
    ("graph", "engine", "numbers"),
    [
        pytest.param("countries_s3", "compiled_first", {"missing": 242, "proof_lost": 31}, marks=pytest.mark.deep),
        pytest.param(
            "family",
            "compiled_first",
            {"missing": 162, "proof_lost": 35, "reordered": 3, "malformed": 1},
            marks=pytest.mark.exhaustive,
        ),
        pytest.param("countries_s3", "compiled_later", {"reordered": 456}, marks=pytest.mark.deep),
        pytest.param("family", "compiled_later", {"reordered": 272, "limit": 50}, marks=pytest.mark.exhaustive),
    ],
)
def test_each_wrong_engine_diverges_in_the_stated_numbers(trace_of, graph, engine, numbers):
    report = kv.compare("reference", trace_of(graph, engine, "forced"), limits={"dialect": EXPAND})
    assert (report.verdict.value, found_in(report)) == ("DIVERGE", numbers)
    free = kv.compare("reference", trace_of(graph, engine, "free"), limits={"dialect": EXPAND})
    assert free.verdict.value == "DIVERGE"


def test_the_command_reads_the_dialect_from_a_file(trace_of, tmp_path, monkeypatch, capsys):
    path = tmp_path / "expand.toml"
    write_dialect(EXPAND, path)
    for engine, code, verdict in (("eager", 0, "AGREE"), ("compiled_first", 1, "DIVERGE")):
        trace = trace_of("countries_s3", engine, "forced")
        monkeypatch.setattr(sys, "argv", ["kgverify", "diff", "reference", str(trace), "--dialect", str(path)])
        assert run() == code
        assert capsys.readouterr().out.startswith(verdict)


@pytest.mark.exhaustive
def test_a_function_of_the_user_for_one_stage_makes_the_wrong_engine_right(trace_of, tmp_path):
    """The later engine: a reversed dialect, with a stage that writes every resolvent beyond the limit over the last one."""
    path = tmp_path / "mine.py"
    path.write_text(REPLACED)
    later = msgspec.structs.replace(EXPAND, order="facts_first", is_reversed=True)
    trace = trace_of("family", "compiled_later", "forced")
    plain = kv.compare("reference", trace, limits={"dialect": later})
    assert (plain.verdict.value, sum(found_in(plain).values())) == ("DIVERGE", 50)
    report = kv.compare(f"{path}:make", trace, limits={"dialect": later})
    assert report.verdict.value == "AGREE"
    assert report.environment.expected.name == "reference with its own limit_resolvents"


REPLACED = """
from kgreference import Stages
from kgverify.engines.reference.engine import ReferenceEngine

def overwrite_last(situation, resolvents):
    most = situation.limits.max_resolvents
    return [*resolvents[: most - 1], *resolvents[most - 1 :][-1:]]

def make(program, limits, policy):
    return ReferenceEngine(program, limits, policy, stages=Stages(limit_resolvents=overwrite_last))
"""
