"""The time of a call, eager beside compiled, measured in turn so that both meet the same load of the machine."""

import math
from typing import Final

import torch
from torch.utils.benchmark import Measurement, Timer

from stepaudit.audited_function import call_with
from stepaudit.errors import describe_error
from stepaudit.properties.compiled_run import CompiledRun
from stepaudit.report import Cell

ROUNDS: Final = 15
"""The number of measurements of each of the two."""
_ROUND_SECONDS: Final = 0.02
"""The time that one measurement takes at least; it averages as many calls as fit."""


def measure_speed(run: CompiledRun) -> None:
    """Measure the eager and the compiled time of a call, if the options ask for it. Compilation does not count.

    Every call has the arguments of the first one, with the values that the call before left in them.
    """
    if not run.options.speed:
        return
    run.options.announce("speed")
    timers, numbers = {}, {}
    try:
        for name, function in (("eager", run.function), ("compiled", run.compiled)):
            given = {"call": call_with, "step": function, "inputs": run.subject.inputs(0)}
            timers[name] = Timer("call(step, inputs)", globals=given, num_threads=torch.get_num_threads())
            timers[name].timeit(2)
            numbers[name] = max(1, math.ceil(_ROUND_SECONDS / max(timers[name].timeit(1).median, 1e-9)))
        rounds = [{name: timer.timeit(numbers[name]) for name, timer in timers.items()} for _ in range(ROUNDS)]
    except Exception as error:
        # A step may not stand many calls.
        run.report.skip("speed", f"a repeated call raised {describe_error(error)}")
        return
    measured = {name: Measurement.merge([each[name] for each in rounds])[0] for name in timers}
    rows: list[dict[str, Cell]] = []
    for name, each in measured.items():
        run.report.measures[f"{name}_seconds_per_step"] = each.median
        times = {"median, us": each.median * 1e6, "interquartile range, us": each.iqr * 1e6}
        rows.append({"run": name, **times, "rounds": ROUNDS, "calls per round": each.number_per_run})
    run.report.measures["speedup"] = measured["eager"].median / measured["compiled"].median
    run.report.add_section("speed", "time of a call", rows)
