"""The progress of long work."""

from pathlib import Path

import pytest

from kgverify.cli.commands.diff import show_comparison


def test_the_progress_of_a_comparison_ends_at_its_total_however_often_columns_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kgverify.cli.progress.SECONDS_BETWEEN_LINES", 0)
    (tmp_path / "a.h5").write_bytes(bytes(3 << 20))
    with show_comparison(tmp_path / "a.h5") as advance:
        for _ in range(10):
            advance(1 << 20)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(",")[2].partition(",")[0] for line in lines] == [f" MiB: {n} of 3" for n in (1, 2, 3)]
    assert lines[-1].endswith("0:00:00 left")
