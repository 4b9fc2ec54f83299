"""`kgverify audit step`: stepaudit's audit of your own step function under torch.compile."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cyclopts import Parameter, validators

from kgverify.cli.commands.diff import EXIT_CODES
from kgverify.cli.options import OWN, Kinds, parse_pairs
from kgverify.cli.output import settings
from kgverify.cli.progress import (
    make_error_console,
    make_result_console,
    show_phase,
    write_github,
    write_json,
    write_result,
)
from kgverify.comparison.result import Verdict
from kgverify.engines.load_engine import load_factory
from kgverify.errors import MissingDependency, UserError, find_missing_dependency
from kgverify.report.render.screen import Screen

MEASURED: Final[Kinds] = {"calls": int, "seconds": int, "patience": int, "torch_mode": str, "keeps_outputs": bool}


@dataclass(frozen=True)
class AuditOptions:
    """The options of an audit.

    Attributes:
        device: The device of your step.
        rung: Only these: backend-eager, aot-eager, aot-eager-decomposed, default, reduce-overhead, max-autotune.
        tolerance: Largest absolute and relative error of a float. If not given, as far as another rounding allows.
        exact: All bits must be equal.
        budget: Limits, as TOML: max_graph_breaks = 0 and the like.
        measure: calls=6: different calls; seconds=120: CPU seconds of the searches for the cause and the line;
            patience=600: CPU seconds after which a rung counts as one that does not return; torch_mode=default,
            reduce-overhead or max-autotune, for the properties; keeps_outputs=false: no output is read after the next
            call.
        reproducer: Write a deviation as a script that needs only torch.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    rung: list[str] | None = None
    tolerance: Annotated[float | None, Parameter(validator=validators.Number(gte=0))] = None
    exact: Annotated[bool, Parameter(negative="")] = False
    budget: Annotated[Path | None, Parameter(metavar="FILE")] = None
    measure: Annotated[tuple[str, ...], Parameter(metavar="KEY=VALUE,...")] = ()
    reproducer: Annotated[Path | None, Parameter(metavar="FILE.py")] = None

    def read(self) -> dict[str, Any]:
        """Return the options of `stepaudit.audit_step`. UserError for an unknown key of `measure`."""
        measured = parse_pairs(self.measure, MEASURED, "measure")
        if "torch_mode" in measured:
            measured["mode"] = measured.pop("torch_mode")
        given = {name: value for name, value in vars(self).items() if name not in ("rung", "measure")}
        return given | ({"rungs": self.rung} if self.rung else {}) | measured


def audit_step(
    function: str,
    /,
    *,
    inputs: Annotated[str, Parameter(metavar="FILE.py:MAKE")],
    chosen: Annotated[AuditOptions, OWN] = AuditOptions(),
    html: Annotated[str | None, Parameter(metavar="FILE")] = None,
    junit: Annotated[str | None, Parameter(metavar="FILE")] = None,
    github: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Compare your step with eager on every rung of torch.compile, and examine the properties that it can lose.

    Exit codes: 0 clean, 1 with findings or over budget, 2 bad input, 3 inconclusive: eager differs from itself.

    Args:
        function: The step, as FILE.py:FUNCTION or MODULE:FUNCTION. Its file is imported.
        inputs: MAKE(call: int) returns the tuple of arguments of a call, numbered from 0.
        html: Write the report as a page.
        junit: Write the report as JUnit XML.
        github: Print annotations; append Markdown to $GITHUB_STEP_SUMMARY.
    """
    stepaudit, given = _import_stepaudit(), chosen.read()
    found = load_factory(function, "FILE.py:FUNCTION", "a function of tensors")
    make = load_factory(inputs, "--inputs", "a function of the number of the call, which returns a tuple of arguments")
    with show_phase("the step", 0) as shown:
        announce = partial(_announce, shown, make_error_console())
        try:
            report = stepaudit.audit_step(found, make, **given, announce=announce)
        except stepaudit.UserError as error:
            raise UserError(error.message, where=error.where, fix=error.fix) from error
    console = make_result_console()
    for part in stepaudit.render_audit(report):
        console.print(part)
    write_json(report)
    if html is not None:
        write_result(stepaudit.render_html(report).encode(), html)
    if junit is not None:
        write_result(stepaudit.render_junit(report), junit)
    if github:
        annotations, markdown = stepaudit.render_annotations(report), partial(stepaudit.render_markdown, report)
        write_github(annotations, markdown, to_error=settings.json_path == "-")
    return EXIT_CODES[Verdict(report.verdict)]


COMMANDS: Final = {"step": audit_step}


def _import_stepaudit() -> Any:
    """Import stepaudit. MissingDependency if it, or torch, is not installed."""
    try:
        import stepaudit

        # Without an installation, its folder in a checkout is an empty package.
        _ = stepaudit.audit_step
    except AttributeError:
        missing = None
    except ImportError as error:
        missing = None if error.name == "stepaudit" else find_missing_dependency(error) or error
    else:
        return stepaudit
    raise missing or MissingDependency(
        "audits need stepaudit, which is not installed",
        where="kgverify audit",
        fix="pip install ./stepaudit in a checkout of kgverify",
    )


def _announce(shown: Any, console: Screen, work: str) -> None:
    """Announce work in the progress bar of a terminal, else as a line on standard error."""
    if console.is_terminal:
        shown.rename(work)
    elif "attempt" not in work:
        console.print(work)
