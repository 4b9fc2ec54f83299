"""The check of an output folder before a long run."""

import tempfile
from pathlib import Path

from kgverify.errors import UserError


def check_output_folder(folder: Path) -> None:
    """Raise UserError unless files can be written in a folder, or it can be created. Create nothing."""
    existing = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise UserError(
            f"cannot write in this folder: {error.strerror}",
            where=str(folder),
            fix="give a folder, or a path where one can be created",
        ) from None
