"""Every file that kgverify writes names its format and version, and a file of another version is refused."""

import json
from pathlib import Path

import msgspec
import pytest

import kgverify as kv


def test_reports_and_evaluations_name_their_formats_and_another_version_is_refused(tmp_path: Path):
    kv.verify("countries", "reference", queries=1, corruptions=1, save=tmp_path / "run")
    options = kv.EvaluationOptions(check=1, minimum="none")
    kv.evaluate("countries", "reference", queries=1, corruptions=3, save=tmp_path / "parts", options=options)
    assert {path.parent.name for path in tmp_path.rglob("*.json")} >= {"run", "parts"}
    for path in tmp_path.rglob("*.json"):
        content = json.loads(path.read_text())
        assert {"format", "schema_version"} & {*content, *content.get("identity", ())}, path
    written = json.loads((tmp_path / "run" / "report.json").read_text())
    assert written["format"] == "kgverify report 1"
    assert msgspec.convert(written, kv.Report).verdict is kv.Verdict.AGREE
    with pytest.raises(msgspec.ValidationError, match="kgverify report 2"):
        msgspec.convert(written | {"format": "kgverify report 2"}, kv.Report)
