"""The templates of a report."""

import re
from collections.abc import Callable, Iterable
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from kgverify.codes import SECTIONS
from kgverify.comparison.modulo import describe_modulo
from kgverify.escaping import make_visible
from kgverify.report import wording

Values = dict[str, Any]
"""The values for a template or a part of it, by name."""

_PHRASES: Final = [
    describe_modulo,
    *(each for each in vars(wording).values() if getattr(each, "__module__", "") == wording.__name__),
]


def read_template(name: str) -> str:
    """Return the text of a template, or of a file beside it."""
    return (files("kgverify.report") / "templates" / name).read_text("utf-8")


def read_packed(*names: str) -> Markup:
    """Return the text of files beside the templates, one after the other, without indentation and without comments."""
    return Markup(re.sub(r"(?m)^\s+|^\s*//.*\n", "", "\n".join(map(read_template, names))))


def link_code(text: str) -> Markup:
    """Return a text whose codes of findings are links to their sections of the docs."""
    return Markup(re.sub(r"\[KG(\d{3})\]", rf'[<a href="{SECTIONS}kg\1">KG\1</a>]', str(escape(make_visible(text)))))


def render_template(
    name: str,
    *,
    escape: Callable[[str], str],
    is_markup: bool,
    filters: Iterable[Callable[..., Any]] = (),
    **values: Any,
) -> str:
    """Render a template. Its filters are `filters` and all functions of `wording`.

    `escape` is applied to every text except `Markup`; is_markup: whether HTML is escaped afterwards.
    """
    environment = Environment(
        loader=PackageLoader("kgverify.report"),
        autoescape=is_markup,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: escape(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    environment.filters.update({each.__name__: each for each in (*_PHRASES, link_code, *filters)})
    return environment.get_template(name).render(**values)
