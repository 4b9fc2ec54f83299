"""Taps in compiled engines of different style: stages named, outcomes, cost, and the rounding of tapped tensors."""

import inspect
import re
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import torch

import kgverify as kv
from benchmarks import Figure, make_parser, print_figures, print_header, print_row, tapped_engines, time_in_turn
from benchmarks.tapped_engines import ENGINES, LIMITS, STAGES, B
from kgverify.engines.adapters.taps import call_with_taps
from kgverify.engines.policy import SHORTEST
from kgverify.verification.rounding import MARGIN, bound_tapped

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32}


def verify(engine, fault, options):
    """Compare an engine that has a fault with the reference."""
    engine.fault_number, engine.mode = fault, options.mode
    given = {"queries": options.queries, "corruptions": options.corruptions, "limits": LIMITS}
    return kv.verify("countries", engine, **given)


def run_stages(engines, options):
    """Plant each fault in each engine, and print the stages that the reports name."""
    print_header(
        "engine", "lines", "fault in", "verdict", "stage named", "causes", "steps with taps, other end", "seconds"
    )
    named, changed, silent, alarms, lines = 0, 0, 0, 0, []
    for engine in engines:
        source = inspect.getsource(engine)
        if "PackedStep" in source:
            source = inspect.getsource(inspect.getmodule(engine).PackedStep)
        lines.append(source.count("kv.tap("))
        for fault in range(len(STAGES) + 1):
            began = time.perf_counter()
            report = verify(engine, fault, options)
            first = report.first_divergence
            stage = first.stage if first else "none"
            expected = STAGES[fault - 1] if fault else "none"
            found = [note for note in report.notes if "taps" in note or "tap " in note]
            named += fault > 0 and stage == expected
            alarms += fault == 0 and report.verdict is not kv.Verdict.AGREE
            changed += any("ended otherwise" in each for each in found)
            silent += any("never fired" in each for each in report.reasons)
            seconds = f"{time.perf_counter() - began:.1f}"
            causes = ", ".join(f"{each.stage} {each.kind}" for each in report.causes)
            print_row(
                engine.__name__, lines[-1], expected, report.verdict, stage, causes, "; ".join(found) or "none", seconds
            )
    num = len(engines) * len(STAGES)
    return [
        Figure("stages named right", named, num, 0.95),
        Figure("engines without a fault that agree", len(engines) - alarms, len(engines), 1),
        Figure("runs in which every tap fired", num - silent, num, 1),
        Figure("runs whose outcomes are the same with and without taps", num - changed, num, 1),
        Figure("engines with at most 10 lines of taps", sum(each <= 10 for each in lines), len(engines), 1),
    ]


def remove_taps():
    """Return the engines without the lines of taps, by name."""
    source = re.sub(r'kv\.tap\("\w+", (\w+)(, \w+)?\)', r"\1", Path(tapped_engines.__file__).read_text())
    assert "kv.tap(" not in source
    module = ModuleType("untapped_engines")
    sys.modules[module.__name__] = module
    exec(compile(source, tapped_engines.__file__, "exec"), module.__dict__)
    return {each.__name__: each for each in module.ENGINES}


def prepare_step(engine, options):
    """Return a compiled step of an engine and its arguments, after a warm-up."""
    engine.fault_number, engine.mode = 0, options.mode
    program = kv.load_graph("countries").program
    made = engine(program, LIMITS, SHORTEST)
    atoms = torch.zeros(B, 6, 3, dtype=torch.int64, device=DEVICE)
    atoms[:, 0] = made.tables.facts[:B]
    free, none = made.tables.names[0].expand(B).contiguous(), torch.zeros(B, 1, 3, dtype=torch.int64, device=DEVICE)
    for _ in range(5):
        made.run(atoms, free, none, made.tables)
    return partial(made.run, atoms, free, none, made.tables)


def measure_cost(engines, options):
    """Print the time of a compiled step with taps that nobody records, and of the same step without these lines."""
    print_header("engine", "step without taps, µs", "with taps, µs", "ratio, median of turns", "least", "most")
    untapped = remove_taps()

    def run(step):
        for _ in range(options.calls):
            step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    for engine in engines:
        sides = {"plain": untapped[engine.__name__], "taps": engine}
        steps = {name: partial(run, prepare_step(each, options)) for name, each in sides.items()}
        seconds = time_in_turn(steps, options.turns)
        ratios = sorted(b / a for a, b in zip(seconds["plain"], seconds["taps"], strict=True))
        shown = [f"{statistics.median(seconds[name]) / options.calls * 1e6:.1f}" for name in ("plain", "taps")]
        print_row(
            engine.__name__, *shown, *(f"{each:.4f}" for each in (statistics.median(ratios), ratios[0], ratios[-1]))
        )


def score(states, first, second):
    """Return scores of goals by a small network, and show them."""
    scores = (torch.tanh(states @ first) @ second)[:, 0]
    kv.tap("score", scores[None])
    return scores.float()


def run_rounding(options):
    """Measure the bound of tapped scores in many runs, and plant errors of 10 and 100 times the measured rounding."""
    print_header(
        "float type",
        "runs",
        "false alarms",
        "10 times found",
        "100 times found",
        "largest error, of the bound",
        "seconds",
    )
    figures = []
    step = torch.compile(
        score, fullgraph=True, dynamic=False, **({"mode": "reduce-overhead"} if DEVICE == "cuda" else {})
    )
    for name in options.precisions:
        dtype = PRECISIONS[name]
        if name == "tf32" and DEVICE != "cuda":
            continue
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
        began, alarms, found, ratio = time.perf_counter(), 0, {10: 0, 100: 0}, 0.0
        random = torch.Generator().manual_seed(0)
        for _ in range(options.runs):
            given = [torch.randn(shape, generator=random) for shape in ((40, 64), (64, 64), (64, 1))]
            given[1:] = [each / 8 for each in given[1:]]
            own = [each.to(DEVICE, dtype) for each in given]
            exact = [each.double() for each in own]
            expected = (torch.tanh(exact[0] @ exact[1]) @ exact[2])[:, 0].cpu().numpy()
            read = partial(read_scores, partial(step, *own))
            actual = np.array(read())
            bound = bound_tapped(SimpleNamespace(), partial(read_scores, partial(score, *own), is_repeated=False), name)
            error = np.abs(actual - expected)
            alarms += bool((error > bound).any())
            ratio = max(ratio, float(error.max()) / bound)
            row = int(torch.randint(len(actual), (), generator=random))
            for times in found:
                wrong = actual.copy()
                wrong[row] += times * bound / MARGIN
                found[times] += bool((np.abs(wrong - expected) > bound).any())
        seconds = f"{time.perf_counter() - began:.1f}"
        print_row(name, options.runs, alarms, *(f"{each:,}" for each in found.values()), f"{ratio:.3f}", seconds)
        figures += [
            Figure(f"{name}: runs without a false alarm", options.runs - alarms, options.runs, 1),
            Figure(f"{name}: errors of 10 times the rounding found", found[10], options.runs, 0.95),
            Figure(f"{name}: errors of 100 times the rounding found", found[100], options.runs, 1),
        ]
    torch.backends.cuda.matmul.allow_tf32 = False
    return figures


def read_scores(call, **options):
    """Return the scores that a tap shows in a call."""
    return call_with_taps(call, DEVICE, **options)[1]["score"].value[0].tolist()


def run_taps(words):
    """Tap five compiled engines of different style, each with eight planted faults.

    On a GPU they are compiled with fullgraph=True and mode="reduce-overhead", on a CPU with fullgraph=True.
    """
    parser = make_parser(run_taps)
    names = [each.__name__ for each in ENGINES]
    parser.add_argument("engines", nargs="*", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--mode", choices=("compiled", "eager"), default="compiled")
    parser.add_argument(
        "--parts", nargs="+", default=["stages", "cost", "rounding"], help="of stages, cost and rounding"
    )
    parser.add_argument(
        "--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS), help="of the rounding part"
    )
    parser.add_argument("--queries", type=int, default=4)
    parser.add_argument("--corruptions", type=int, default=6)
    parser.add_argument("--runs", type=int, default=1000, help="runs of the rounding part for each float type")
    parser.add_argument("--calls", type=int, default=100, help="calls in a turn of the cost part")
    parser.add_argument("--turns", type=int, default=30)
    options = parser.parse_args(words)
    engines = [each for each in ENGINES if each.__name__ in (options.engines or names)]
    figures = []
    if "stages" in options.parts:
        figures += run_stages(engines, options)
    if "cost" in options.parts:
        measure_cost(engines, options)
    if "rounding" in options.parts:
        figures += run_rounding(options)
    return print_figures(figures)
