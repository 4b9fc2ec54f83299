"""Saving a problem on which an engine does not conform, as text that a person reads."""

from pathlib import Path

from kgverify.errors import UserError
from kgverify.fuzz.problem import Problem


def save_problem(path: Path, problem: Problem, cause: str) -> Path:
    """Write the problem with the cause of its failure, each line of it a comment. UserError if it cannot be written."""
    comments = "\n".join(f"% {line}".rstrip() for line in cause.splitlines())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{problem}\n{comments}\n", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"cannot be written: {error}", where=str(path), fix="give a folder that can be written"
        ) from None
    return path
