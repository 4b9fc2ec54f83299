"""The grid of formats and variants in a small form."""

import pytest
from graph_formats import FORMATS, VARIANTS, main


@pytest.mark.deep
def test_every_format_is_read_or_refused_in_every_variant():
    assert main(["--graphs", "1"]) == 0
    assert (len(FORMATS), len(VARIANTS)) == (12, 24)


def test_usual_variants_are_read_and_a_wrong_reading_is_noticed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert main(["--graphs", "1", "--variants", "header", "unusual names"]) == 0
    monkeypatch.setattr("kgverify.graphs.formats.tables._find_roles", lambda fields: None)
    assert main(["--graphs", "1", "--variants", "header"]) == 1
    assert "read wrongly" in capsys.readouterr().out
