"""The loggers for MLflow and Weights & Biases, offline."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOGGERS = ROOT / "examples" / "loggers"

pytestmark = pytest.mark.deep


def run_logger(name: str, folder: Path, **settings: str) -> list[list[str]]:
    """Run an example, and return the words of the lines that it prints: the run, and the verdict."""
    done = subprocess.run(
        [sys.executable, str(LOGGERS / name)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "reference")]), **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines() if line.endswith(("AGREE", "DIVERGE"))]


def test_reports_are_logged_to_mlflow(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    store = (tmp_path / "store").as_uri()
    # MLflow 3 keeps its store of files for those who ask for it; the others need a database.
    settings = {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_TRACKING_URI": store}
    runs = run_logger("mlflow_logger.py", tmp_path, **settings)
    assert [verdict for _, verdict in runs] == ["AGREE", "DIVERGE"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        client = mlflow.MlflowClient(store)
        (_, agreeing), (_, faulty) = zip(runs, (client.get_run(run) for run, _ in runs), strict=True)
        assert faulty.data.tags["verdict"] == "DIVERGE"
        assert faulty.data.metrics["divergences"] > 0
        key = "actual.both.realistic.mean_reciprocal_rank"
        assert faulty.data.metrics[key] < agreeing.data.metrics[key]
        names = {each.path for each in client.list_artifacts(faulty.info.run_id)}
    assert names == {"report.html", "report.txt"}


def test_reports_are_logged_to_weights_and_biases(tmp_path):
    pytest.importorskip("wandb", reason="wandb is not installed")
    runs = run_logger("wandb_logger.py", tmp_path, WANDB_MODE="offline", WANDB_SILENT="true")
    assert [verdict for _, verdict in runs] == ["AGREE", "DIVERGE"]
    agreeing, faulty = (Path(folder) for folder, _ in runs)
    (table,) = faulty.glob("media/table/causes*.json")
    stage, difference, num_divergences = json.loads(table.read_text())["data"][0]
    assert (stage, difference) == ("match_facts", "missing")
    assert num_divergences > 0
    (recorded,) = agreeing.parent.glob("*.wandb")
    assert b"both.realistic.mean_reciprocal_rank" in recorded.read_bytes()
    assert (faulty / "report.html").read_text().startswith("<!doctype html>")


def test_the_examples_are_short():
    """Each is a function of about 20 lines to copy."""
    for path in LOGGERS.glob("*.py"):
        function = path.read_text(encoding="utf-8").split("\ndef ")[1].split("\n\n\n")[0]
        assert len(function.splitlines()) <= 20
