"""Help texts: as wide as the terminal, with the options of a command in groups."""

from collections.abc import Sequence
from typing import Any, Final

from typer.core import TyperCommand, TyperGroup

QUERIES: Final = "Graph and queries"
PROOFS: Final = "Proofs"
EVALUATOR: Final = "Compiled evaluator"
"""Groups of options that several commands share."""
_INDENT: Final = 4
_PlainHelp: Any = TyperGroup.context_class.formatter_class


class HelpText(_PlainHelp):  # type: ignore[misc]  # a value of Any
    """The help of a command, as wide as the terminal."""

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write names beside their descriptions, or above them where a description would be narrower than its name."""
        is_narrow = max(len(name) for name, _ in rows) > self.width // 2
        super().write_dl(rows, _INDENT if is_narrow else col_max, col_spacing)


class GroupedCommand(TyperCommand):
    """A command whose help lists arguments, then its own options, then those of each group."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the groups."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for each in self.get_params(ctx):
            if record := each.get_help_record(ctx):
                title = "Arguments" if each.param_type_name == "argument" else getattr(each, "rich_help_panel", None)
                sections.setdefault(title or "Options", []).append(record)
        for title, rows in sections.items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)
