"""Reproducers as tests for pytest, which fail before the repair and pass after it."""

import re
import runpy
from pathlib import Path
from typing import Final, NamedTuple

from kgverify.errors import UserError
from kgverify.files.writing import write_file
from kgverify.testing.checking.failure import LAW
from kgverify.testing.reproducers.reproducer import Reproducer
from kgverify.testing.reproducers.text_format import escape, render_reproducer
from kgverify.version import __version__

_TEMPLATE: Final = '''"""{title}

Made by kgverify {version}. It fails until {until} on the problem below.
"""

from kgverify.laws.replay import assert_agrees
from kgverify.testing.reproducers.text_format import parse_reproducer

REPRODUCER = r"""{text}"""


def {function}():
    assert_agrees(parse_reproducer(REPRODUCER, __file__))
'''


class FirstRun(NamedTuple):
    """The result of running a generated test once: whether it failed, as it must, and its message."""

    fails: bool
    message: str


def render_test(reproducer: Reproducer) -> str:
    """Return the text of a test file."""
    stage, field, kind, situation = reproducer.signature
    title = f"{stage or 'engine'}: {kind}{f' ({field})' if field else ''}"
    named = f"test_{stage or 'engine'}_{kind}" + (f"_{situation}" if kind == LAW else "")
    function = re.sub(r"\W+", "_", named, flags=re.ASCII).lower()
    text = render_reproducer(reproducer).replace('"""', '"\\x22\\"')
    until = f"{reproducer.engine.name} and {reproducer.reference.name} agree"
    if kind == LAW:
        until = f"the law {situation} holds, and {until},"
    return _TEMPLATE.format(title=_plain(title), version=__version__, text=text, function=function, until=_plain(until))


def _plain(text: str) -> str:
    """Return the text without what would end a docstring."""
    return re.sub(r'[\\"\s]+', " ", escape(text)).strip()


def write_test(reproducer: Reproducer, path: Path) -> FirstRun:
    """Write the test, and run it once: before the repair it must fail. UserError if it cannot be written."""
    if not (path.name.startswith("test_") and path.suffix == ".py"):
        raise UserError("pytest does not collect this name", where=str(path), fix="give a name such as test_step.py")
    write_file(path, render_test(reproducer))
    return run_test(path)


def run_test(path: Path) -> FirstRun:
    """Run the tests of a generated file, as pytest would."""
    names = runpy.run_path(str(path))
    for name, function in names.items():
        if name.startswith("test_"):
            try:
                function()
            except AssertionError as error:
                return FirstRun(True, str(error))
    return FirstRun(False, "both sides agree")
