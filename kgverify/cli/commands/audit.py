"""`kgverify audit step`: the command `stepaudit`, with its options."""

from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from kgverify.cli.output import JSON, QUIET, settings
from kgverify.errors import MissingDependency, UserError, find_missing_dependency


def audit_step(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Compare your step with eager on every rung of torch.compile, and examine the properties that it can lose.

    Args:
        words: The step, as FILE.py:STEP, and the options of `stepaudit`.
    """
    common = [f"{JSON}={settings.json_path}"] if settings.json_path is not None else []
    common += [QUIET[0]] if settings.is_quiet else []
    command = _import_command()
    try:
        code: int = command.run_command([*words, *common], "kgverify audit step")
    except command.UserError as error:
        raise UserError(error.message, where=error.where, fix=error.fix) from error
    return code


# Its options and their help are those of stepaudit, which may not be installed.
_STEP: Final = App(help_flags=(), version_flags=())
_STEP.default(audit_step)
COMMANDS: Final = {"step": _STEP}


def _import_command() -> Any:
    """Import the command of stepaudit. MissingDependency if it, or torch, is not installed."""
    try:
        from stepaudit import command
    except ImportError as error:
        # Without an installation, its folder in a checkout is an empty package.
        is_absent = (error.name or "").startswith("stepaudit")
        missing = None if is_absent else find_missing_dependency(error) or error
    else:
        return command
    raise missing or MissingDependency(
        "audits need stepaudit, which is not installed",
        where="kgverify audit",
        fix="pip install ./stepaudit in a checkout of kgverify",
    )
