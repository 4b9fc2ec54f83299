"""Each strategy to compile a search ends as eager does, or is wrong; unavailable ones are listed with torch's message."""

import pytest
import torch
from bench_runs import small_run, tiny_plan
from compile_strategies import build_search, compare_states, find_smallest_gap, measure_strategies
from search_strategies import Search, list_strategies, take_eagerly

from kgverify.bench.result import State, decode_result, encode_result
from kgverify.bench.table import render_result
from kgverify.errors import UserError
from kgverify.prover.execution.compilation import compile_function, has_cpp_compiler

STEPS = 4
WITHOUT_COMPILER = ("eager", "loop", "regional", "unrolled")


def leave_unchanged(function, mode):
    return function


def small_search(steps: int = STEPS, policy: str = "shortest") -> tuple[Search, float]:
    return build_search(small_run(policy), torch.device("cpu"), 8, steps)


@pytest.fixture(scope="module")
def without_compiler():
    return measure_strategies(
        small_run(), tiny_plan(), steps=STEPS, names=WITHOUT_COMPILER, compile_function=leave_unchanged
    )


@pytest.mark.deep
def test_every_strategy_ends_as_eager_does(without_compiler):
    assert [each.name for each in without_compiler.measurements] == list(WITHOUT_COMPILER)
    for each in without_compiler.measurements:
        assert each.state is State.TIMED
        assert (each.num_units, each.ticks, len(each.samples)) == (STEPS, STEPS, 3)
        (agreement,) = each.agreements
        assert agreement.num_compared > 1000
        assert agreement.num_differing == 0
    assert decode_result(encode_result(without_compiler), "here") == without_compiler
    assert "µs/tick" in "\n".join(render_result(without_compiler))


def test_a_strategy_whose_compiler_breaks_a_stage_is_wrong():
    def break_choose(function, mode):
        if function.__name__ != "choose":
            return function

        def choose_last(kind, num_resolvents, score):
            choices = function(kind, num_resolvents, score)
            return choices._replace(choice=(num_resolvents - 1).clamp(min=0))

        return choose_last

    result = measure_strategies(
        small_run(), tiny_plan(), steps=STEPS, names=("loop", "regional"), compile_function=break_choose
    )
    assert result.find("loop").state is State.TIMED
    wrong = result.find("regional")
    assert (wrong.state, wrong.reason, wrong.samples) == (State.WRONG, "call 1 differs", ())
    assert not result.is_right
    assert "eager" in wrong.agreements[0].example


def test_a_compiled_tick_that_skips_a_tick_is_wrong():
    def skip_first(function, mode):
        num_calls = 0

        def take(tables, parameters, *state):
            nonlocal num_calls
            num_calls += 1
            return state if num_calls % STEPS == 1 else function(tables, parameters, *state)

        return take

    result = measure_strategies(small_run(), tiny_plan(), steps=STEPS, names=("loop",), compile_function=skip_first)
    assert result.find("loop").state is State.WRONG


def test_a_strategy_that_torch_cannot_compile_is_listed_with_its_message():
    def refuse(function, mode):
        raise RuntimeError("no such operator")

    result = measure_strategies(small_run(), tiny_plan(), steps=1, names=("eager", "unrolled"), compile_function=refuse)
    absent = result.find("unrolled")
    assert (absent.state, absent.reason) == (State.ABSENT, "torch cannot: RuntimeError: no such operator")
    assert result.is_right


@pytest.mark.skipif(torch.cuda.is_available(), reason="on CUDA graphs are captured")
def test_captured_graphs_are_absent_on_a_cpu():
    result = measure_strategies(small_run(), tiny_plan(), steps=6, names=("captured-2", "captured-6"))
    assert [each.state for each in result.measurements] == [State.ABSENT, State.ABSENT]
    assert "CUDA" in result.find("captured-2").reason


def test_an_interruption_keeps_the_strategies_before_it():
    def interrupt(function, mode):
        raise KeyboardInterrupt

    result = measure_strategies(
        small_run(), tiny_plan(), steps=1, names=("eager", "loop", "unrolled"), compile_function=interrupt
    )
    assert not result.is_complete
    assert [each.state for each in result.measurements] == [State.TIMED, State.INTERRUPTED, State.ABSENT]


def test_an_end_state_that_differs_in_one_number_is_seen_and_unspecified_rows_are_not():
    search, _ = small_search()
    expected = take_eagerly(search, leave_unchanged)()
    same = take_eagerly(search, leave_unchanged)()
    same.work.origin[:, -1] += 7
    assert compare_states(expected, same, 0.0).num_differing == 0
    same.derivations.depth[3] += 1
    agreement = compare_states(expected, same, 0.0)
    assert agreement.num_differing == 1
    assert agreement.example.startswith("derivations.depth[3]: eager")


def test_log_probabilities_may_differ_within_the_tolerance_and_no_further():
    search, _ = small_search()
    expected, other = (take_eagerly(search, leave_unchanged)() for _ in range(2))
    other.derivations.log_probability[0] += 1e-6
    assert compare_states(expected, other, 1e-5).num_differing == 0
    assert compare_states(expected, other, 1e-5).largest_gap == pytest.approx(1e-6)
    assert compare_states(expected, other, 1e-7).num_differing == 1
    other.derivations.log_probability[0] = torch.nan
    assert compare_states(expected, other, 1e-5).num_differing == 1


def test_a_difference_where_scores_are_too_close_to_tell_is_undecided(monkeypatch):
    search, error = small_search(policy="two_tower")
    gap = find_smallest_gap(search)
    assert 0 <= gap < float("inf")
    assert error > 0
    monkeypatch.setattr("compile_strategies.find_smallest_gap", lambda search: error)

    def skip(function, mode):
        return lambda tables, parameters, *state: state

    result = measure_strategies(small_run("two_tower"), tiny_plan(), steps=2, names=("loop",), compile_function=skip)
    assert result.find("loop").state is State.UNDECIDED
    assert result.find("loop").samples == ()


def test_an_unknown_strategy_or_no_ticks_are_mistakes():
    with pytest.raises(UserError, match="did you mean 'unrolled'"):
        measure_strategies(small_run(), tiny_plan(), names=("unroled",))
    with pytest.raises(UserError, match="at least 1 tick"):
        measure_strategies(small_run(), tiny_plan(), steps=0)
    assert list(list_strategies(20))[-2:] == ["captured-2", "captured-20"]


@pytest.mark.deep
@pytest.mark.skipif(not has_cpp_compiler(), reason="torch compiles for a CPU with a C++ compiler")
def test_compile_time_and_cache_are_measured():
    def compile_finish(function, mode):
        return compile_function(function, mode) if function.__name__ == "finish" else function

    result = measure_strategies(small_run(), tiny_plan(), steps=2, names=("regional",), compile_function=compile_finish)
    (measured,) = result.measurements
    assert measured.state is State.TIMED, measured
    assert measured.compile_seconds > 0
    assert measured.first_seconds > measured.compile_seconds
    assert measured.cache == "miss"


@pytest.mark.deep
def test_torchs_while_loop_ends_as_eager_does():
    def trace(function, mode):
        return torch.compile(function, backend="eager", fullgraph=True, dynamic=False)

    (measured,) = measure_strategies(
        small_run(), tiny_plan(), steps=3, names=("while_loop",), compile_function=trace
    ).measurements
    # Where torch cannot, it says so.
    assert measured.state is State.TIMED or measured.reason.startswith("torch cannot: "), measured
    assert not any(each.num_differing for each in measured.agreements)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a CUDA device")
def test_captured_graphs_of_any_length_end_as_eager_does():
    names = ("captured-2", "captured-6")
    result = measure_strategies(small_run(), tiny_plan(device="cuda"), steps=6, names=names)
    assert [each.state for each in result.measurements] == [State.TIMED, State.TIMED], render_result(result)
