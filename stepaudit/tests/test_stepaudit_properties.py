"""Each planted fault is found at its line by the audit that is for it, and nothing is found where nothing was lost."""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import planted_steps as planted
import pytest
import torch
from planted_steps import line_of

from stepaudit import AuditReport, Verdict, audit_step

pytestmark = pytest.mark.deep

FOUR = torch.arange(4.0)
ROWS = torch.tensor([1, 3, 1, 4])


def audit(function: Callable[..., Any], make_inputs: Callable[..., Any], **options: Any) -> AuditReport:
    return audit_step(function, make_inputs, **{"calls": 3, "rungs": (), **options})


def found(report: AuditReport) -> list[tuple[str, str]]:
    return [(each.audit, each.where) for each in report.findings]


def test_a_clean_step_of_nested_arguments_has_no_finding():
    report = audit(planted.clean_step, planted.clean_inputs)
    assert (report.findings, report.is_clean) == ((), True)
    measures = report.measures
    for name in ("graph_breaks", "recompilations", "syncs_per_step", "guard_holes", "calls_run_eagerly"):
        assert measures[name] == 0, name
    assert (measures["graphs"], measures["aliased_outputs"]) == (1, 1)
    assert measures["guard_perturbations"] > 0
    assert measures["kernels_generated"] > 0
    assert measures["compile_seconds"] > 0
    assert measures["peak_memory_bytes"] > 0


def test_a_module_has_no_finding():
    torch.manual_seed(0)
    with torch.no_grad():
        report = audit(planted.Module(), lambda: (FOUR,))
    assert report.findings == ()
    assert report.measures["guard_perturbations"] >= 4


def test_a_graph_break_is_found_at_its_line_in_the_function_that_is_called():
    report = audit(planted.breaking_step, lambda: (FOUR,))
    assert found(report) == [("graph-breaks", line_of(planted.tell))]
    assert report.measures["graph_breaks"] == 1


def test_a_shape_that_recompiles_is_found_at_the_line_that_depends_on_it():
    report = audit(planted.step_with_shapes, lambda call: (torch.ones(3 + call % 3),), calls=4)
    assert found(report) == [("recompilations", line_of(planted.step_with_shapes))]
    assert report.measures["recompilations"] == 2
    assert "size mismatch" in report.findings[0].finding


def fail_later(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    runs = count()

    def run(*given: Any) -> Any:
        if next(runs) > 2:
            raise ValueError("no buffer is free")
        return graph(*given)

    return run


def test_compiled_code_that_raises_when_a_call_is_repeated_is_found():
    report = audit(lambda x: x + 1, lambda: (FOUR,), calls=2, backend=fail_later)
    (found,) = report.findings
    assert (found.audit, report.verdict) == ("compilation", Verdict.DIVERGE)
    assert found.finding == (
        "call 2, repeated, raises ValueError: no buffer is free, which it does not without the compiler"
    )


def count_down(left: torch.Tensor) -> torch.Tensor:
    if int(left.sub_(1)) < 0:
        raise ValueError("none is left")
    return left + 1


def test_a_step_that_raises_when_a_call_is_repeated_without_the_compiler_as_well_has_no_finding():
    report = audit(count_down, lambda: (torch.tensor(1),), calls=1, backend="eager")
    assert "compilation" not in {each.audit for each in report.findings}
    assert any("repeated, raises ValueError: none is left" in each.reason for each in report.unmeasured)


def test_a_branch_on_a_size_is_found_where_the_earlier_size_takes_the_other_way():
    report = audit(planted.step_with_branch, lambda call: (torch.ones(2 + 3 * (call % 3), 4),), calls=4)
    assert found(report) == [("recompilations", line_of(planted.step_with_branch))]


def test_the_return_to_eager_past_the_limit_is_found():
    # Not by monkeypatch, whose undoing takes a setting of torch away.
    with torch._dynamo.config.patch(recompile_limit=2):
        report = audit(planted.step_with_words, lambda call: (FOUR, "w" * call))
    line = line_of(planted.step_with_words)
    assert found(report) == [("recompilations", line), ("eager-fallback", line)]
    assert report.measures["recompilations"] == 1
    assert report.measures["calls_run_eagerly"] >= 1


@pytest.mark.parametrize("function", [planted.reading_step, planted.listing_step, planted.choosing_step])
def test_a_wait_of_the_host_is_found_at_its_line(function: Callable[..., Any]):
    report = audit(function, lambda: (FOUR,))
    assert ("syncs", line_of(function)) in found(report)
    assert report.measures["syncs_per_step"] == 1
    assert {where for _, where in found(report)} == {line_of(function)}


def test_a_buffer_that_is_returned_and_written_in_place_is_found():
    function = planted.make_aliasing_step()
    report = audit(function, lambda: (FOUR,))
    assert found(report) == [("aliasing", line_of(function))]
    assert "closure state" in report.findings[0].finding


def test_a_view_of_an_argument_that_is_written_in_place_is_found():
    report = audit(planted.mutating_step, lambda: (torch.ones(4), FOUR))
    assert found(report) == [("aliasing", line_of(planted.mutating_step))]


def test_an_argument_that_is_returned_is_listed_without_a_finding():
    report = audit(planted.passing_step, lambda: (torch.ones(4), FOUR))
    assert report.findings == ()
    assert report.details["aliased_outputs"] == ("output[0] is or views argument [0]",)


def test_indices_that_collide_are_found_at_the_line_of_the_write():
    functions = planted.colliding_step, planted.scattering_step
    report = audit(lambda *given: [function(*given) for function in functions], lambda: (FOUR, ROWS))
    assert found(report) == [("duplicate-scatters", line_of(function)) for function in functions]


def test_collisions_that_change_nothing_are_no_finding():
    functions = planted.step_with_sink, planted.adding_step
    report = audit(lambda *given: [function(*given) for function in functions], lambda: (FOUR, ROWS))
    assert (report.findings, report.measures["colliding_scatters"]) == ((), 1)


def test_random_numbers_of_numpy_do_not_make_harmless_collisions_a_finding():
    def step(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return planted.step_with_sink(values, rows) * float(np.random.rand())

    report = audit(step, lambda: (FOUR, ROWS), calls=1)
    assert "duplicate-scatters" not in dict(found(report))
    assert report.measures["colliding_scatters"] == 1


def test_outputs_without_memory_share_none():
    report = audit(lambda values: (values[:0] + 1, values[:0] + 2), lambda: (FOUR,))
    assert report.details["shared_outputs"] == ()


def test_zeros_of_both_signs_at_one_place_collide():
    report = audit(planted.colliding_step, lambda: (torch.tensor([0.0, -0.0, -0.0, 0.0]), torch.tensor([1, 1, 2, 2])))
    assert report.measures["colliding_scatters"] > 0


def test_equal_values_at_one_place_do_not_collide():
    report = audit(planted.colliding_step, lambda: (torch.ones(4), ROWS))
    assert (report.findings, report.measures["colliding_scatters"]) == ((), 0)


@pytest.mark.parametrize(
    ("function", "reader"),
    [
        (planted.step_with_hole, planted.factor),
        (planted.step_with_late_hole, planted.scale),
        (planted.step_with_decorated_hole, planted.raise_values),
    ],
)
def test_a_guard_hole_of_dynamo_or_a_later_part_is_found_at_the_line_that_reads_the_value(
    function: Callable[..., Any], reader: Callable[..., Any]
):
    report = audit(function, lambda: (FOUR,))
    assert found(report) == [("guard-holes", line_of(reader))]
    assert "the old answer" in report.findings[0].finding
    assert planted.WIDTH == {"factor": 2.0}


def test_everything_a_cpu_cannot_show_is_reported_as_unmeasured():
    if torch.cuda.is_available():
        pytest.skip("a CUDA device shows it")
    report = audit(planted.passing_step, lambda: (torch.ones(4), FOUR), mode="reduce-overhead")
    assert {each.audit for each in report.unmeasured} >= {"cuda-graphs", "copied-inputs", "launches", "syncs"}
    assert "launches_per_step" not in report.measures


@pytest.fixture
def cuda() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.mark.cuda
@pytest.mark.usefixtures("cuda")
def test_a_closure_tensor_that_is_copied_before_each_replay_is_found():
    function = planted.make_step_with_table()
    report = audit(function, lambda: (FOUR,), device="cuda", mode="reduce-overhead", keeps_outputs=False)
    assert found(report) == [("copied-inputs", line_of(function))]
    assert report.measures["replays_per_step"] >= 1


@pytest.mark.cuda
@pytest.mark.usefixtures("cuda")
def test_an_output_kept_across_replays_is_found():
    report = audit(planted.keeping_step, lambda: (FOUR,), device="cuda", mode="reduce-overhead")
    assert found(report) == [("overwritten-outputs", line_of(planted.keeping_step))]
    declared = audit(planted.keeping_step, lambda: (FOUR,), device="cuda", mode="reduce-overhead", keeps_outputs=False)
    assert declared.findings == ()


@pytest.mark.cuda
@pytest.mark.usefixtures("cuda")
def test_a_wait_is_found_on_a_cuda_device_too():
    report = audit(planted.reading_step, lambda: (FOUR,), device="cuda")
    assert ("syncs", line_of(planted.reading_step)) in found(report)


@pytest.mark.cuda
@pytest.mark.usefixtures("cuda")
def test_a_stream_that_does_not_wait_for_another_is_found():
    function = planted.make_racing_step()
    assert ("stream-races", line_of(function)) in found(audit(function, lambda: (FOUR,), device="cuda"))
    waiting = partial(function, waits=True)
    assert "stream-races" not in dict(found(audit(waiting, lambda: (FOUR,), device="cuda")))


@pytest.mark.cuda
@pytest.mark.usefixtures("cuda")
def test_an_output_that_the_step_itself_keeps_across_replays_is_found():
    function = planted.step_that_keeps_its_sum
    report = audit(function, lambda: (FOUR,), device="cuda", mode="reduce-overhead", keeps_outputs=False)
    assert ("overwritten-outputs", line_of(function)) in found(report)
