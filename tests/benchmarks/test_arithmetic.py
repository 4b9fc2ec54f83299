"""Determinism of functions of tensors: planted faults are found at their lines, and sound functions have no findings."""

import inspect
from typing import NamedTuple

import pytest
import torch
from audit_reports import report_of
from torch import Tensor

from benchmarks.numerics.arithmetic import (
    BatchAxis,
    audit_batch,
    audit_colliding_writes,
    audit_numerics,
    audit_repetition,
    audit_settings,
)
from kgverify.prover.execution.device import pinned_arithmetic, products_set_to
from stepaudit import AuditReport, UserError
from stepaudit.audited_function import Function, Subject
from stepaudit.environment import read_product_settings

CPU = torch.device("cpu")
WEIGHT = torch.linspace(-1, 1, 48).reshape(6, 8)


def rows(call: int = 0) -> tuple[Tensor]:
    return (torch.linspace(0, 1, 40).reshape(5, 8) + call,)


def line_of(function: Function, text: str) -> str:
    """The line of the function that contains the text: `this file:line`."""
    source, first = inspect.getsourcelines(function)
    (offset,) = [i for i, line in enumerate(source) if text in line]
    return f"{__file__.rpartition('/')[2]}:{first + offset}"


def audits_of(report: AuditReport) -> list[str]:
    return [finding.audit for finding in report.findings]


def layer(x: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.relu(x @ WEIGHT.T)
    return y, y.argmax(1)


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_sound_layer_is_clean_eager_and_compiled():
    report = audit_numerics(layer, rows, name="layer")
    assert report.is_clean, report.findings
    assert report.subject == "layer"
    assert report.measures["batch_rows"] == 5
    assert [each.audit for each in report.unmeasured] == ["tf32"]
    assert {"float32_matmul_precision", "torch", "threads"} <= report.environment.keys()


def noisy(x: Tensor) -> Tensor:
    y = x * 2
    z = y + torch.rand(y.shape)
    return z.sum(1)


def test_a_draw_from_the_global_generator_is_reported_with_its_line():
    (finding,) = report_of(audit_repetition, Subject("noisy", noisy, rows), modes=("eager",)).findings
    assert finding.where.endswith(line_of(noisy, "torch.rand"))
    assert "differ" in finding.finding


def test_a_function_that_remembers_its_calls_is_found_though_every_operation_repeats_itself():
    calls = torch.zeros(1)

    def remembering(x: Tensor) -> Tensor:
        calls.add_(1)
        return x + calls

    (finding,) = report_of(audit_repetition, Subject("remembering", remembering, rows), modes=("eager",)).findings
    assert finding.audit == "repetition"


def test_arguments_are_made_large_along_the_batch_axis():
    seen = []

    def watching(x: Tensor) -> Tensor:
        seen.append(len(x))
        return x if len(x) < 100 else x + torch.rand(())

    (finding,) = report_of(audit_repetition, Subject("watching", watching, rows), modes=("eager",), large=1000).findings
    assert max(seen) * 8 >= 1000
    assert "25 times as large" in finding.finding


def test_a_mode_that_cannot_be_compiled_is_not_clean():
    def unsupported(x: Tensor) -> Tensor:
        raise ValueError("not in this mode")

    report = report_of(audit_repetition, Subject("unsupported", unsupported, rows), modes=("eager",))
    assert not report.findings
    assert "not in this mode" in report.unmeasured[0].reason


def test_an_unknown_mode_is_a_mistake_of_the_user():
    with pytest.raises(UserError, match="unknown mode 'fast'"):
        audit_numerics(layer, rows, modes=("fast",))


class Results(NamedTuple):
    values: Tensor
    counts: Tensor


def scatter_twice(place: Tensor, values: Tensor) -> Results:
    counts = torch.zeros(4).index_add(0, place, torch.ones(3))
    results = torch.zeros(4)
    results[place] = values
    return Results(results, counts)


def scatter_to_sink(place: Tensor, values: Tensor) -> Tensor:
    return torch.zeros(4).index_put((place,), values)[1:]


def scatter_in_rows(place: Tensor, values: Tensor) -> Tensor:
    table = torch.zeros(2, 4)
    return table.scatter(1, place[None].expand(2, -1), values[None].expand(2, -1))


def copy_rows(place: Tensor, values: Tensor) -> Tensor:
    return torch.zeros(4, 2).index_copy_(0, place, values[:, None].expand(-1, 2))


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (scatter_twice, "results[place] ="),
        (scatter_in_rows, "table.scatter"),
        (copy_rows, "index_copy_"),
    ],
)
def test_an_element_that_is_written_twice_and_read_is_reported_with_its_line(function: Function, line: str):
    place, values = torch.tensor([0, 2, 0]), torch.tensor([1.0, 2.0, 3.0])
    report = report_of(audit_colliding_writes, lambda: function(place, values), "f")
    (finding,) = report.findings
    assert finding.where.endswith(line_of(function, line))
    assert report.measures["scatters_repeated"] == report.measures["scatters_read"] == 1


@pytest.mark.parametrize("values", [[1.0, 2.0, 1.0], [5.0, 5.0, 5.0]])
def test_equal_values_in_one_element_are_not_a_finding(values: list[float]):
    place = torch.tensor([0, 2, 0])
    report = report_of(audit_colliding_writes, lambda: scatter_twice(place, torch.tensor(values)), "f")
    assert not report.findings
    assert report.measures["scatters"] == 1


def test_a_sink_that_nothing_reads_is_counted_without_a_finding():
    place, values = torch.tensor([0, 2, 0]), torch.tensor([1.0, 2.0, 3.0])
    report = report_of(audit_colliding_writes, lambda: scatter_to_sink(place, values), "f")
    assert not report.findings
    assert report.measures["scatters_repeated"] == 1


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def test_rows_that_read_one_another_are_found():
    (finding,) = report_of(audit_batch, Subject("centred", centred, rows)).findings
    assert "row" in finding.finding


def test_a_decision_may_not_depend_on_the_batch():
    def ranks(x: Tensor) -> Tensor:
        return x.sum(1).argsort()

    (finding,) = report_of(audit_batch, Subject("ranks", ranks, rows)).findings
    assert "not rounded" in finding.finding


def test_only_rounding_beyond_the_declared_error_is_a_finding():
    def drifting(x: Tensor) -> Tensor:
        return x.sum(1) + 1e-4 * len(x)

    subject = Subject("drifting", drifting, rows)
    assert not report_of(audit_batch, subject, error=1e-3).findings
    assert report_of(audit_batch, subject, error=1e-5).findings
    assert report_of(audit_batch, subject, error=1e-3).measures["batch_largest_difference"] == pytest.approx(
        4e-4, rel=1e-2
    )


def test_arguments_without_a_batch_axis_are_left_whole():
    square = torch.eye(5)

    def apply(matrix: Tensor, x: Tensor) -> Tensor:
        return x @ matrix

    subject = Subject("apply", apply, lambda call: (square, torch.linspace(0, 1, 25).reshape(5, 5)))
    assert report_of(audit_batch, subject).unmeasured
    report = report_of(audit_batch, subject, axis=BatchAxis(0, (1,)))
    assert not report.findings
    assert not report.unmeasured


def test_a_batch_of_one_cannot_be_examined():
    report = report_of(audit_batch, Subject("layer", layer, lambda call: (torch.zeros(1, 8),)))
    assert "batch of 1" in report.unmeasured[0].reason


def test_scores_that_depend_on_a_setting_are_found_and_the_setting_is_restored():
    def set_by_others() -> Tensor:
        value = torch.tensor([1.0 + 2**-20])
        return value if torch.get_float32_matmul_precision() == "highest" else value.bfloat16().float()

    before = read_product_settings()
    assert not report_of(audit_settings, set_by_others, "f", device=CPU).findings
    with products_set_to("high"):
        (finding,) = report_of(audit_settings, set_by_others, "f", device=CPU).findings
    assert "as it is set" in finding.finding
    assert read_product_settings() == before


def test_pinned_arithmetic_leaves_what_was_set_behind_it():
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16), pinned_arithmetic():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.is_autocast_enabled("cpu")
            assert matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "tf32"
    finally:
        matmul.fp32_precision = before
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_sums_by_atomics_are_found_on_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")

    def pool_rows(x: Tensor, place: Tensor) -> Tensor:
        return torch.zeros(7, device=x.device).index_add(0, place, x)

    def make() -> tuple[Tensor, Tensor]:
        x = torch.linspace(0, 1, 1 << 20, device="cuda").sin()
        return x, torch.arange(len(x), device="cuda") % 7

    report = report_of(
        audit_repetition, Subject("pool_rows", pool_rows, lambda call: make()), modes=("eager",), repetitions=8
    )
    assert [finding.audit for finding in report.findings] == ["repetition"]
