"""The driver of the benchmarks lists them, and can import each."""

import pytest

from benchmarks.__main__ import BENCHMARKS, load


@pytest.mark.deep
@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_can_be_imported_and_describes_its_options(name: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as end:
        load(name)(["--help"])
    assert end.value.code == 0
    assert f"usage: python -m benchmarks {name}" in capsys.readouterr().out
