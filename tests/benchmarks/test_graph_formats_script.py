"""The grid of formats and variants in a small form."""

from dataclasses import replace

import pytest
from graph_formats import FORMATS, VARIANTS, main

from kgverify.graphs.load import load_graph


@pytest.mark.deep
def test_every_format_is_read_or_refused_in_every_variant():
    assert main(["--graphs", "1"]) == 0
    assert (len(FORMATS), len(VARIANTS)) == (12, 27)


def test_usual_variants_are_read_and_a_wrong_reading_is_noticed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert main(["--graphs", "1", "--variants", "header", "unusual names"]) == 0
    for wrong, problem in (({"train": ()}, "read wrongly: train"), ({"warnings": ()}, "no warning")):
        monkeypatch.setattr(
            "graph_formats.load_graph", lambda folder, wrong=wrong: replace(load_graph(folder), **wrong)
        )
        assert main(["--graphs", "1", "--variants", "header"]) == 1
        assert problem in capsys.readouterr().out
