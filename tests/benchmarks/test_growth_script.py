"""The script of the growth curves: equal work on more facts, exponents, and a picture that is XML."""

from xml.etree import ElementTree

import numpy as np
import pytest
from growth import TINY, Point, draw_alike, draw_chain, draw_graph, fit_exponent, measure, render


def test_copies_of_a_graph_leave_the_work_of_its_candidates_as_it_is():
    base, larger = draw_graph(200, 4), draw_graph(200, 4, 3)
    assert len(larger.train) == 3 * len(base.train)
    assert len(set(larger.train)) == len(larger.train)
    candidates = draw_alike(larger, base, 44)
    names = larger.program.symbols.constants
    assert {names[i] for i in candidates.atom[:, 1:].ravel().tolist()} <= set(base.program.symbols.constants)
    points = [measure("facts", value, TINY["facts"][0], "native", True) for value in TINY["facts"]]
    assert len({each.ends for each in points}) == 1


def test_a_derivation_along_the_chain_takes_as_many_steps_as_it_may():
    assert len(draw_chain(5).train) == 5
    ends = {measure("depth", value, 2, "native", True).ends for value in TINY["depth"]}
    assert len(ends) == 1


def test_exponents_are_slopes_between_logarithms():
    values = (10, 100, 1000)
    for exponent in (0.0, 0.5, 2.0):
        assert fit_exponent(values, [3 * value**exponent for value in values]) == pytest.approx(exponent)


def test_the_picture_has_a_panel_for_each_axis():
    points = {axis: {value: Point(0.5, value, 100.0, "") for value in (1, 10)} for axis in ("facts", "a<b")}
    picture = render(points, "growth & time")
    root = ElementTree.fromstring(picture)
    assert root.find("{http://www.w3.org/2000/svg}title").text == "growth & time"
    assert picture.count("µs a candidate: 1 to 10, exponent 1.00") == 2
    assert "nan" not in picture
    assert np.isfinite(fit_exponent((1, 10), (0.0, 0.0)))
