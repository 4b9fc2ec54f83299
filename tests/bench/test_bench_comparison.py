"""A saved run beside a new one: noise is no change, changes are reported, other work is not compared; files; the picture."""

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from bench_runs import made_result, timed

from kgverify.bench.compare import ASPECTS, LEAST_BAND, Change, compare_runs, find_band
from kgverify.bench.plan import SIZES, find_size
from kgverify.bench.plot import render_plot
from kgverify.bench.result import Measurement, State, decode_result, encode_result, read_result, summarize
from kgverify.bench.table import render_comparison, render_result
from kgverify.errors import UserError

STEADY = (1.0, 1.01, 0.99, 1.0, 1.02)
NOISY = (1.0, 1.6, 0.8, 1.3, 0.7)


def compare_samples(before: tuple[float, ...], after: tuple[float, ...]) -> Change:
    compared = compare_runs(made_result(timed("eager", *before)), made_result(timed("eager", *after)))
    return compared.rows[0].change


def scaled(samples: tuple[float, ...], by: float) -> tuple[float, ...]:
    return tuple(each * by for each in samples)


def test_samples_are_summarized_in_five_numbers():
    spread = summarize([3.0, 1.0, 2.0, 6.0])
    assert (spread.least, spread.median, spread.mean, spread.most) == (1.0, 2.5, 3.0, 6.0)
    assert spread.deviation == pytest.approx(2.1602469)
    assert summarize([2.0]).deviation == 0.0


def test_the_same_samples_are_the_same():
    assert compare_samples(STEADY, STEADY) is Change.SAME


def test_what_is_slower_by_more_than_the_noise_is_slower_and_the_other_way_round_faster():
    assert compare_samples(STEADY, scaled(STEADY, 1.3)) is Change.SLOWER
    assert compare_samples(scaled(STEADY, 1.3), STEADY) is Change.FASTER


def test_a_difference_that_noise_explains_is_the_same():
    assert compare_samples(NOISY, scaled(NOISY, 1.2)) is Change.SAME
    assert compare_samples(STEADY, scaled(STEADY, 1.2)) is Change.SLOWER


def test_a_difference_below_the_least_band_is_the_same_however_steady_both_are():
    still = (1.0,) * 8
    assert compare_samples(still, scaled(still, 1 + LEAST_BAND / 2)) is Change.SAME
    assert compare_samples(still, scaled(still, 1 + 2 * LEAST_BAND)) is Change.SLOWER


def test_slow_calls_do_not_count_beside_a_fastest_call_of_equal_speed():
    assert compare_samples(STEADY, (0.99, 1.5, 1.5, 1.5, 1.5)) is Change.SAME


def test_too_few_repeats_tell_nothing():
    assert find_band((1.0, 1.0), STEADY) is None
    assert compare_samples((1.0, 1.0), scaled(STEADY, 3)) is Change.UNKNOWN


def test_the_band_holds_1_and_widens_with_the_noise_of_either_side():
    still, noisy = find_band(STEADY, STEADY), find_band(STEADY, NOISY)
    assert still.low <= 1 <= still.high
    assert noisy.low < still.low
    assert noisy.high > still.high
    assert find_band(STEADY, NOISY) == noisy


def test_speeds_are_compared_for_each_unit():
    before = made_result(timed("eager", *STEADY, num_units=10))
    after = made_result(timed("eager", *scaled(STEADY, 2), num_units=20))
    assert compare_runs(before, after).rows[0].ratio == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("aspect", "changes"),
    [
        ("machine", {"device_name": "another"}),
        ("machine", {"threads": 8}),
        ("torch", {"torch": "2.11.0"}),
        ("graph", {"graph_sha256": "cd"}),
        ("size", {"num_candidates": 11}),
        ("size", {"slots": 64}),
        ("policy", {"policy_sha256": "ef"}),
        ("limits", {"limits": {"max_depth": 5}}),
        ("precision", {"tf32": True}),
        ("faults", {"faults": ("fact-cap",)}),
    ],
)
def test_other_work_or_another_machine_is_reported_and_compared_only_on_request(aspect, changes):
    before, after = made_result(timed("eager", *STEADY)), made_result(timed("eager", *STEADY), **changes)
    compared = compare_runs(before, after)
    assert {each.aspect for each in compared.obstacles} == {aspect}
    assert (compared.rows, compared.is_compared, compared.is_slower) == ((), False, False)
    printed = "\n".join(render_comparison(compared, "old.json"))
    assert "NOT COMPARED" in printed
    assert f"--across {aspect}" in printed
    crossed = compare_runs(before, after, across=[aspect])
    assert crossed.is_compared
    assert {each.aspect for each in crossed.crossed} == {aspect}
    assert "differs, as allowed" in "\n".join(render_comparison(crossed, "old.json"))


def test_every_aspect_names_fields_that_there_are():
    result = made_result()
    for paths in ASPECTS.values():
        for path in paths:
            part, name = path.split(".")
            assert hasattr(getattr(result, part), name)
    with pytest.raises(UserError, match="did you mean 'torch'"):
        compare_runs(result, result, across=["tortch"])


def test_what_one_side_lacks_is_listed_as_unknown():
    before = made_result(timed("eager", *STEADY), timed("default", *STEADY))
    wrong = Measurement(name="default", state=State.WRONG, reason="call 1 differs")
    compared = compare_runs(before, made_result(timed("eager", *STEADY), wrong, timed("fused", *STEADY)))
    changes = {row.name: (row.change, row.reason) for row in compared.rows}
    assert changes["eager"] == (Change.SAME, "")
    assert changes["default"] == (Change.UNKNOWN, "in this run: wrong: call 1 differs")
    assert changes["fused"] == (Change.UNKNOWN, "in the saved run: missing")


def test_benchmarks_of_different_kinds_are_a_mistake():
    with pytest.raises(UserError, match="strategies"):
        compare_runs(made_result(kind="strategies"), made_result())


def test_a_saved_run_is_read_again_and_other_files_are_refused(tmp_path: Path):
    result = made_result(timed("eager", *STEADY))
    path = tmp_path / "run.json"
    path.write_bytes(encode_result(result))
    assert read_result(path) == result
    with pytest.raises(UserError, match="cannot be read"):
        read_result(tmp_path / "none.json")
    with pytest.raises(UserError, match="is not a result of a benchmark"):
        decode_result(b"[1, 2]", "file")
    with pytest.raises(UserError, match="expected version 1 of the schema, found 99"):
        decode_result(encode_result(msgspec.structs.replace(result, schema_version=99)), "file")


def test_sizes_grow_and_an_unknown_one_is_a_mistake():
    sizes = list(SIZES.values())
    for smaller, larger in pairwise(sizes):
        assert all(a <= b for a, b in zip(smaller, larger, strict=True))
        assert smaller.queries * smaller.corruptions < larger.queries * larger.corruptions
        assert smaller.slots < larger.slots
    with pytest.raises(UserError, match="did you mean 'small'"):
        find_size("smal")


def test_the_picture_has_a_bar_for_each_speed_and_a_note_where_no_speed_is():
    result = made_result(
        timed("reference", *STEADY),
        timed("eager", *NOISY),
        Measurement(name="default", state=State.WRONG, reason="call 2 differs"),
        graph="a<b>&\"c'",
    )
    picture = render_plot(result)
    tree = ElementTree.fromstring(picture.encode())
    of = "{http://www.w3.org/2000/svg}"
    assert [each.get("class") for each in tree.iter(f"{of}rect")] == ["paper", "reference", "eager"]
    assert len([each for each in tree.iter(f"{of}path") if each.get("class") == "whisker"]) == 2
    texts = [each.text for each in tree.iter(f"{of}text")]
    assert "WRONG, speed withheld: call 2 differs" in texts
    assert any(text.startswith("a<b>&\"c'") for text in texts)
    assert "<b>" not in picture
    width = float(tree.get("width"))
    assert all(float(x) <= width for x in re.findall(r' x2?="([\d.]+)"', picture))


@pytest.mark.parametrize("scale", [1e-9, 1e-6, 1e-3, 1.0, 1e3])
def test_the_picture_has_a_sensible_axis_at_any_scale(scale):
    tree = ElementTree.fromstring(render_plot(made_result(timed("eager", *scaled(NOISY, scale)))).encode())
    lines = [each for each in tree.iter("{http://www.w3.org/2000/svg}line") if each.get("class") == "grid"]
    assert 3 <= len(lines) <= 8


def test_a_picture_and_a_table_of_nothing_measured_can_be_made():
    result = made_result(Measurement(name="eager", state=State.ABSENT, reason="left out"))
    ElementTree.fromstring(render_plot(result).encode())
    assert "not measured: left out" in "\n".join(render_result(result))
