"""Write the help of each command to `kgverify/cli/help`, from which it is printed: `python tools/write_help.py`."""

import os
import pathlib

from kgverify.cli.command_line import list_commands, make_app, render_command_help
from kgverify.cli.entries import ENTRIES, HELP, MOST_COLUMNS


def render_help() -> dict[str, str]:
    """Return the help texts, by the names of their files."""
    os.environ["COLUMNS"] = str(MOST_COLUMNS)
    app = make_app(*ENTRIES)
    # `audit step` prints the help of stepaudit.
    every = {(name,) for name in ENTRIES} | {*list_commands(app)} - {("audit", "step")}
    return {f"{'-'.join(words)}.txt": render_command_help(app, words) + "\n" for words in sorted(every)}


if __name__ == "__main__":
    texts = render_help()
    for path in pathlib.Path(HELP).glob("*.txt"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        pathlib.Path(HELP, name).write_text(text, encoding="utf-8")
