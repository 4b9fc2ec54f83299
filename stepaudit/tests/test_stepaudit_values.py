"""The ladder: what is compared, what it is attributed to, and the script that shows it."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.compiler_bisector import CompilerBisector

from benchmarks.audit.miscompiles import MISCOMPILES
from stepaudit import AuditReport, UserError, Verdict
from stepaudit.audited_function import Subject, make_subject
from stepaudit.ladder.climb import Climb, Judge, climb
from stepaudit.ladder.culprit import LINE, PASS, SWITCH, Item, _search_group, find_culprit
from stepaudit.ladder.evidence import render_repair
from stepaudit.ladder.minimal_graph import find_minimal_graph, read_kernels
from stepaudit.ladder.observation import Observation, compare_observations, observe
from stepaudit.ladder.reproducer import Bundle, NotStandalone, write_reproducer
from stepaudit.ladder.rounding import excuse
from stepaudit.ladder.values_audit import audit_values
from stepaudit.minimize import minimize
from stepaudit.options import RUNG_NAMES, RUNGS, USUALLY, AuditOptions, Rung
from stepaudit.properties.colliding_writes import find_colliding_writes
from stepaudit.properties.compiled_run import CompiledRun
from stepaudit.properties.syncs import find_syncs, watch_eager_reads
from stepaudit.report import ReportBuilder
from stepaudit.source_lines import find_return
from stepaudit.values import describe_difference

BY_NAME = {rung.name: rung for rung in RUNGS}
BELOW_INDUCTOR = RUNG_NAMES[:3]


def take(name: str) -> Subject:
    case = MISCOMPILES[name]
    return Subject(name, case.step, case.make, calls=4)


def audit(subject: Subject, options: AuditOptions = USUALLY) -> AuditReport:
    report = ReportBuilder()
    return report.build(subject.name, {}, is_conclusive=audit_values(subject, report, options))


def count_rows(rows: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(mask, rows, 0.0).sum(1), mask.sum(1)


def draw_rows(call: int) -> tuple[Tensor, Tensor]:
    rows = torch.randn(8, 8, generator=torch.Generator().manual_seed(call))
    return rows, rows > 0


@pytest.mark.deep
def test_a_sound_function_agrees_on_every_rung() -> None:
    report = audit(Subject("count", count_rows, draw_rows, calls=1))
    assert report.verdict is Verdict.AGREE
    assert [row["name"] for row in report.sections["rungs"].rows] == [
        rung.name for rung in RUNGS[1:] if rung.name != "reduce-overhead" or torch.cuda.is_available()
    ]
    assert all(row["calls"] > 0 for row in report.sections["rungs"].rows)


@pytest.mark.exhaustive
def test_a_mutated_argument_left_wrong_is_found_and_laid_to_its_pass(tmp_path: Path) -> None:
    report = audit(
        take("swap_buffers"),
        AuditOptions(rungs=RUNG_NAMES[:4], reproducer=tmp_path / "swap.py", seconds=100),
    )
    assert report.verdict is Verdict.DIVERGE
    (found,) = report.sections["attribution"].rows
    assert found["rung"] == "default"
    rows = report.sections["deviations"].rows
    assert {row["kind"] for row in rows if row["rung"] == "default"} == {"argument"}
    assert found["left_out"].split(" (")[0] == "pass remove_noop_ops"
    assert " and " not in found["left_out"]
    assert found["reproducer"], found["reproducer_problem"]
    (finding,) = report.findings
    assert "on rung default" in finding.finding
    assert "pass remove_noop_ops" in finding.remedy
    assert "stepaudit" not in (tmp_path / "swap.py").read_text()
    python, path, *words = found["repaired_by"].split()
    assert (python, path, words) == ("python", str(tmp_path / "swap.py"), ["repaired"])
    codes = [subprocess.run([sys.executable, path, *given], check=False).returncode for given in ([], words)]
    assert codes == [1, 0]


def turn_differently(x: Tensor) -> Tensor:
    return x.t().contiguous() if torch.compiler.is_compiling() else x.t()


def shift_differently(x: Tensor) -> Tensor:
    return x + 5 if torch.compiler.is_compiling() else x + 3


# The result of eager is a view of the argument, and that of compiled code is not; or the values differ.
@pytest.mark.parametrize(
    ("function", "expected", "found"),
    [
        pytest.param(turn_differently, "[0, 0]", "[0, 1]", marks=pytest.mark.exhaustive),
        pytest.param(shift_differently, "[tensor([[4., 4., 4.]", "[tensor([[6., 6., 6.]", marks=pytest.mark.exhaustive),
    ],
)
def test_a_script_says_what_eager_and_compiled_code_give(
    tmp_path: Path, function: Any, expected: str, found: str
) -> None:
    path = tmp_path / "wrong.py"
    subject = Subject("step", function, lambda call: (torch.ones(2, 3),), calls=1)
    audit(subject, AuditOptions(rungs=("backend-eager",), reproducer=path, seconds=0))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert re.search(rf"DIFFERS: expected {re.escape(expected)}.*, found {re.escape(found)}", done.stderr, re.DOTALL)


@torch.no_grad()
def add_differently(x: Tensor) -> dict[str, Tensor]:
    return {"sum": x + torch.compiler.is_compiling() * torch.tensor([0.0, 0.5, 1.0]), "same": x}


def test_values_stand_side_by_side_at_the_elements_that_deviate() -> None:
    subject = Subject("add", add_differently, lambda call: (torch.tensor([1.0, 2.0, 1.0]),), calls=1)
    report = audit(subject, AuditOptions(rungs=("backend-eager",), seconds=0))
    assert report.sections["values"].title == "call 1: output['sum'], value by value"
    assert report.sections["values"].rows == (
        {"index": "[1]", "eager": "2.0", "compiled": "2.5", "float64": "2.0", "ulps": "2.1e+06"},
        {"index": "[2]", "eager": "1.0", "compiled": "2.0", "float64": "1.0", "ulps": "8.39e+06"},
    )


def test_a_repair_is_code_that_omits_what_it_names() -> None:
    switch = Item(SWITCH, "cpp.simdlen=1", ("torch._inductor.config",), value=(("cpp.simdlen", 1),))
    names: dict[str, Any] = {}
    exec(render_repair([switch, Item(PASS, "fold", ("post_grad_passes",))]), names)
    with names["repair"]:
        assert torch._inductor.config.cpp.simdlen == 1
        assert CompilerBisector.disable_subsystem("inductor", "post_grad_passes", lambda: "fold")
        assert not CompilerBisector.disable_subsystem("inductor", "post_grad_passes", lambda: "other")
    assert not CompilerBisector.disable_subsystem("inductor", "post_grad_passes", lambda: "fold")
    assert torch._inductor.config.cpp.simdlen != 1


def test_the_kernels_of_generated_code_are_found_by_their_names() -> None:
    code = """
cpp_fused_add_0 = async_compile.cpp_pybinding(['const float*'], r'''
    void kernel() {}
    // end
''')
triton_0 = async_compile.triton('triton_', '''
@triton.jit
def triton_(x): pass
''', device_str='cuda')
size = compute(2)
"""
    found = read_kernels(code)
    assert found == {"cpp_fused_add_0": "void kernel() {}\n// end", "triton_0": "@triton.jit\ndef triton_(x): pass"}


@pytest.mark.parametrize(("size", "is_stated"), [(0.01, False), (1e3, True)])
def test_a_large_excuse_stands_in_the_line_of_the_verdict(size: float, is_stated: bool) -> None:
    def add_in_another_order(x: Tensor) -> Tensor:
        start = 90 if torch.compiler.is_compiling() else 150
        return x[:start].sum() + x[start:].sum()

    draw = torch.randn(100, generator=torch.Generator().manual_seed(0)) * size
    values = torch.cat([draw, -draw, torch.tensor([1 / 3])])
    subject = Subject("add", add_in_another_order, lambda call: (values,), calls=1)
    report = audit(subject, AuditOptions(rungs=("backend-eager",)))
    assert report.verdict is Verdict.AGREE
    assert report.sections["rungs"].rows[0]["rounding"] or not is_stated
    assert ("rounding excuses up to" in report.headline) is is_stated


class Called:
    """A callable without a source that a script could take."""

    def __init__(self, subject: Subject) -> None:
        self._function = subject.function

    def __call__(self, *arguments: Tensor) -> object:
        return self._function(*arguments)


@pytest.mark.exhaustive
def test_where_the_source_cannot_be_taken_the_script_holds_the_graph(tmp_path: Path) -> None:
    swap = take("swap_buffers")
    subject = Subject("swap", Called(swap), swap.make_inputs)
    ladder = climb(subject, AuditOptions(rungs=("default",)))
    assert ladder.first is not None
    minimal = find_minimal_graph(ladder.judge, ladder.first)
    problem, _ = write_reproducer(ladder.judge, ladder.first, tmp_path / "graph.py", minimal=minimal)
    assert problem == ""
    assert "def graph(" in (tmp_path / "graph.py").read_text()


def transform_and_find(done: Tensor) -> Tensor:
    return torch.func.vjp(torch.sin, done.float())[0] + done.min(0).indices


@pytest.mark.exhaustive
def test_a_graph_with_a_transformation_of_torch_func_is_kept_whole() -> None:
    subject = Subject("transform", transform_and_find, lambda call: (torch.tensor([True, False]),), calls=1)
    report = audit(subject, AuditOptions(rungs=("default",), seconds=30))
    assert report.verdict is Verdict.DIVERGE
    assert "_wrap_for_grad" in report.listings["minimal graph"]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["mark_true", "mark_others"])
def test_a_comparison_folded_in_tracing_is_found_on_the_first_rung(name: str, tmp_path: Path) -> None:
    if not torch.__version__.startswith("2.13"):
        pytest.skip("torch 2.13 folds it")
    subject = take(name)
    ladder = climb(subject, AuditOptions(rungs=BELOW_INDUCTOR))
    first = ladder.first
    assert first is not None
    assert first.rung.name == "backend-eager"
    problem, _ = write_reproducer(ladder.judge, first, tmp_path / "mark.py")
    assert problem == ""
    done = subprocess.run([sys.executable, "mark.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1


@pytest.mark.deep
def test_a_fused_copy_that_reads_what_it_wrote_is_found_where_it_is_functionalized() -> None:
    subject = take("rotate_at_once")
    ladder = climb(subject, AuditOptions(rungs=BELOW_INDUCTOR))
    assert ladder.first is not None
    assert ladder.first.rung.name == "aot-eager"
    # No pass and no switch repairs it; the line that is left to eager does.
    (item,) = find_culprit(ladder.judge, ladder.first).items
    assert item.kind == LINE
    assert item.name == find_return(subject.function)


class Repairs:
    """A search whose subject is right without all of one of some sets of items."""

    has_failed = False

    def __init__(self, *sets: set[Item]) -> None:
        self.sets, self.tried = sets, set[frozenset[Item]]()

    def repairs(self, items: Sequence[Item]) -> bool:
        self.tried.add(frozenset(items))
        return any(each <= set(items) for each in self.sets)


@pytest.mark.parametrize("wanted", [{0}, {7}, {15}, {3, 12}, {4, 5, 6}])
def test_the_items_that_repair_only_together_are_found(wanted: set[int]) -> None:
    items = [Item(PASS, f"pass_{number}", ()) for number in range(16)]
    search = Repairs({items[number] for number in wanted})
    assert set(_search_group(search, items, divides=True)) == search.sets[0]
    if len(wanted) == 1:
        assert len(search.tried) <= 6


def test_of_two_passes_that_each_repair_the_last_is_named() -> None:
    items = [Item(PASS, f"pass_{number}", ()) for number in range(16)]
    search = Repairs({items[2]}, {items[9]})
    assert _search_group(search, items, divides=True) == items[9:10]


@pytest.mark.deep
def test_two_passes_that_one_name_stands_for_are_left_out_together() -> None:
    judge = Judge(take("shift_rows"), AuditOptions(seconds=200))
    deviations, _ = judge.judge(judge.watch(BY_NAME["default"]))
    culprit = find_culprit(judge, Climb(BY_NAME["default"], deviations, 1, 0.0))
    assert [(item.kind, len(item.where)) for item in culprit.items] in ([(PASS, 2)], [(PASS, 1)])
    assert culprit.num_tried > 1


def add_with_caches(x: Tensor) -> Tensor:
    return x + int(torch.compiler.is_compiling() and torch._inductor.config.fx_graph_cache)


@pytest.mark.deep
def test_a_deviation_that_needs_the_caches_is_laid_to_them() -> None:
    subject = Subject("add", add_with_caches, lambda call: (torch.arange(4.0),), calls=1)
    report = audit(subject, AuditOptions(rungs=("default",), seconds=60))
    (found,) = report.findings
    assert found.mechanism == "the rung default adds: the compiler's caches"
    assert report.sections["attribution"].rows[0]["left_out"] == "switch fx_graph_cache=False (torch._inductor.config)"


@pytest.mark.deep
def test_a_function_that_differs_from_itself_is_inconclusive() -> None:
    report = audit(make_subject("noise", lambda x: x + os.urandom(8)[0], lambda: (torch.zeros(3),)))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert report.sections["unsteady"].rows
    assert "rungs" not in report.sections


@pytest.mark.deep
def test_a_function_that_fails_in_eager_is_reported_with_its_error() -> None:
    with pytest.raises(UserError, match="already fails in eager: RuntimeError"):
        climb(make_subject("product", torch.mm, lambda: (torch.zeros(2, 3), torch.zeros(2, 3))))


def test_arguments_other_than_a_tuple_are_refused() -> None:
    with pytest.raises(UserError, match="expected a tuple of arguments"):
        climb(make_subject("one", torch.neg, lambda: torch.zeros(2)))


def test_an_output_that_shares_memory_is_no_copy() -> None:
    shared = observe(lambda x: x.view(-1), (torch.zeros(2, 2),))
    copied = observe(lambda x: x.view(-1).clone(), (torch.zeros(2, 2),))
    assert shared.leaves("aliasing") == {"output": "argument[0]"}
    assert [each.kind for each in compare_observations(shared, copied)] == ["aliasing"]
    assert not list(compare_observations(shared, shared))


def test_an_error_that_only_one_side_raises_is_a_difference() -> None:
    fails = observe(lambda x: x.view(5), (torch.zeros(2, 2),))
    assert [each.kind for each in compare_observations(fails, observe(torch.neg, (torch.zeros(2, 2),)))] == ["error"]
    assert not list(compare_observations(fails, fails))


def test_whole_numbers_have_to_be_equal_and_others_near() -> None:
    def given(value: Tensor) -> object:
        return observe(lambda x: x, (value,))

    one = torch.tensor([1.0, float("nan")])
    assert not list(compare_observations(given(one), given(one + 1e-7)))
    assert list(compare_observations(given(one), given(one + 1e-3)))
    assert list(compare_observations(given(torch.tensor([10**9])), given(torch.tensor([10**9 + 1]))))
    assert list(compare_observations(given(torch.tensor([1])), given(torch.tensor([1.0]))))


def test_a_tensor_that_requires_no_gradient_any_more_differs() -> None:
    one = torch.ones(2)
    assert describe_difference(one.clone().requires_grad_(), one) == "expected requires_grad True, found False"


def test_a_wrong_element_beside_a_rounded_one_is_no_rounding() -> None:
    def given(*values: float) -> Observation:
        return observe(lambda x: x, (torch.tensor(values),))

    expected, shadow, other = given(1.0, 1.0), given(1.01, 1.0), given(1.01, 1.0)
    for actual, is_excused in (((1.01, 1.0), True), ((1.0, 1.5), False), ((1.01, 1.5), False)):
        (deviation, *_) = compare_observations(expected, given(*actual))
        assert bool(excuse(deviation, expected, given(*actual), shadow, [other])) == is_excused


def test_no_single_item_of_a_minimal_list_can_be_removed() -> None:
    assert minimize(range(4), lambda kept: 2 in kept and (1 in kept or 3 not in kept)) == (2,)


def test_the_waits_of_different_calls_at_a_line_are_those_of_one_call() -> None:
    def step(x: Tensor) -> Tensor:
        return x * float(x.sum())

    run = CompiledRun(Subject("step", step, lambda call: (torch.ones(2),), calls=3), USUALLY, ReportBuilder())
    watch_eager_reads(run)
    find_syncs(run)
    (found,) = run.report.build("step", {}, is_conclusive=True).findings
    assert " times in a call" not in found.finding


def count_up(x: Tensor) -> Tensor:
    (last,) = torch.while_loop(lambda i: i < 3, lambda i: (i + 1,), (torch.zeros((), dtype=torch.int64),))
    return x * last


def test_a_step_with_control_flow_is_examined() -> None:
    subject = Subject("count_up", count_up, lambda call: (torch.ones(2),), calls=1)
    run = CompiledRun(subject, USUALLY, ReportBuilder())
    with torch.compiler.set_stance("force_eager"):
        watch_eager_reads(run)
        find_colliding_writes(run)
    assert run.report.measures["aten_calls_per_step"] > 0
    assert audit(subject, AuditOptions(rungs=("backend-eager",), repetitions=0)).verdict is Verdict.AGREE


def test_a_value_without_source_is_named() -> None:
    held = object()

    def function(x: Tensor) -> Tensor:
        return x if held else -x

    with pytest.raises(NotStandalone, match="object"):
        Bundle().hold(function, (torch.zeros(1),))


@pytest.mark.deep
def test_a_custom_rung_can_be_climbed() -> None:
    def negate(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        return lambda *arguments: [-each for each in graph(*arguments)]

    wrong = Rung("wrong", "a sign", {"backend": negate})
    first = climb(Subject("count", count_rows, draw_rows, calls=1), rungs=(wrong,)).first
    assert first is not None
    assert first.deviations[0].call == "call 1"


def add_flipped(state: Tensor, values: Tensor) -> Tensor:
    return state.add_(values.flip(0)).mul_(2.5).sum()


def double_array(values: Tensor) -> object:
    return values.numpy() * 2


@pytest.mark.deep
@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (add_flipped, (torch.arange(3.0, dtype=torch.float64), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64))),
        (double_array, (torch.arange(3.0),)),
    ],
)
def test_an_error_in_float64_memory_written_in_place_or_in_an_array_is_no_rounding(
    function: object, arguments: tuple[Tensor, ...]
) -> None:
    def shift(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        return lambda *given: [each + 1e-2 for each in graph(*given)]

    wrong = Rung("wrong", "an error", {"backend": shift})
    first = climb(Subject("step", function, lambda call: arguments, calls=1), rungs=(wrong,)).first
    assert first is not None
    assert first.deviations[0].kind == "output"
