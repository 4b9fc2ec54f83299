"""SVG images of text, bars and lines: for a slide on white, and in a page in the page's colours."""

from typing import Final, NamedTuple

from kgverify.escaping import make_visible
from kgverify.report.render.template import render_template

ROW: Final = 20
"""The height of a line, in pixels."""

LETTER: Final = 7.3
"""The width of a letter, in pixels."""


class Text(NamedTuple):
    """A line of text. style: classes of the template, such as `bold` or `soft`; anchor: `start`, or `end` at x."""

    x: float
    y: float
    text: str
    style: str = ""
    anchor: str = "start"


class Bar(NamedTuple):
    """A rectangle, in a colour of the template."""

    x: float
    y: float
    width: float
    height: float
    style: str


class Line(NamedTuple):
    """A line, as the path of SVG that starts at x and y."""

    x: float
    y: float
    path: str
    style: str = ""


class Picture(NamedTuple):
    """An image with a title of one or more lines. All of its shapes are to the right of x = 0 and below y = 0."""

    title: str
    shapes: tuple[Text | Bar | Line, ...]

    def render(self, *, is_alone: bool = True) -> str:
        """Return the image as SVG. is_alone: whether it is a file, and not a part of a page, which has the styles."""
        lines = self.title.splitlines()
        shapes = (*(Text(0, i * ROW, line, "bold") for i, line in enumerate(lines, 1)), *self.shapes)
        ends = [
            each.x + (len(make_visible(each.text)) * LETTER if isinstance(each, Text) and each.anchor == "start" else 0)
            for each in shapes
        ]
        ends += [each.x + each.width for each in shapes if isinstance(each, Bar)]
        return render_template(
            "picture.svg",
            escape=make_visible,
            is_markup=True,
            is_alone=is_alone,
            title=" ".join(lines),
            shapes=shapes,
            width=round(max(ends)) + ROW,
            height=round(max(each.y for each in shapes)) + ROW,
        )
