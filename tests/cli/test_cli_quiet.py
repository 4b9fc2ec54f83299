"""Commands that are to print their verdict alone."""

import re

from cli_runs import EAGER, SMALL, Command


def test_quiet_prints_the_line_of_the_verdict_alone(command: Command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = ("diff", *SMALL, *EAGER, "--no-determinism", "--fault", "fact-cap", "--save", "run")
    quiet, whole = command(*run, "--quiet"), command(*run)
    assert (quiet.code, quiet.err) == (whole.code, "") == (1, "")
    assert quiet.out == whole.out.splitlines()[0] + "\n"
    assert command("report", "run", "-q").out == quiet.out
    assert command("shrink", "run", "-o", "s.kg", "--calls", 20).code == 0
    assert re.fullmatch(r"DIVERGE   still, .*\n", command("replay", "s.kg", "-q").out)
    assert len(command("report", "run").out.splitlines()) > 10
