"""Every file that kgverify writes names its format and version, and a file of another version is refused."""

import json
from pathlib import Path

import msgspec
import pytest

import kgverify as kv


def test_a_report_names_its_format_and_another_version_is_refused(tmp_path: Path):
    kv.verify("countries", "reference", queries=1, corruptions=1, save=tmp_path / "run")
    for path in tmp_path.rglob("*.json"):
        assert "format" in (content := json.loads(path.read_text())) or "schema_version" in content, path
    written = json.loads((tmp_path / "run" / "report.json").read_text())
    assert written["format"] == "kgverify report 1"
    assert msgspec.convert(written, kv.Report).verdict is kv.Verdict.AGREE
    with pytest.raises(msgspec.ValidationError, match="kgverify report 2"):
        msgspec.convert(written | {"format": "kgverify report 2"}, kv.Report)


def test_an_evaluation_names_its_format(tmp_path: Path):
    kv.evaluate("countries", "reference", queries=1, corruptions=3, save=tmp_path / "run")
    names = {path.name: json.loads(path.read_text()) for path in tmp_path.rglob("*.json")}
    assert names
    for name, content in names.items():
        assert "format" in content or "format" in content["identity"], name
