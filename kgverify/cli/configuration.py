"""The configuration file: options in `kgverify.toml`, or in `[tool.kgverify]` of `pyproject.toml`.

kgverify searches for the file in the current folder and its parents, up to the first parent that belongs to somebody else,
because an engine that the file names is code that kgverify runs. The file of another user counts only in the current folder,
and only if not everybody may write there: anybody can put a file into /tmp.
"""

import os
from typing import Any, Final

NAMES: Final = ("kgverify.toml", "pyproject.toml")
_SECTION: Final = b"[tool.kgverify"
_MAX_BYTES: Final = 1 << 20
_OF_FILES: Final = ("graph", "rules", "engine", "reference", "policy", "limits")
"""The keys whose values may name files relative to the folder of the configuration."""


def find_file() -> str | None:
    """Return the path of the configuration file; None if it does not exist."""
    try:
        folder = current = os.getcwd()
    except OSError:
        return None
    while True:
        for name in NAMES:
            path = os.path.join(folder, name)
            if os.path.isfile(path) and (name == NAMES[0] or _has_section(path)):
                return path if _is_owned(path) or (folder == current and not os.stat(folder).st_mode & 0o002) else None
        parent = os.path.dirname(folder)
        if parent == folder or not _is_owned(parent):
            return None
        folder = parent


def _has_section(path: str) -> bool:
    try:
        with open(path, "rb") as stream:
            return _SECTION in stream.read(_MAX_BYTES)
    except OSError:
        return False


def _is_owned(path: str) -> bool:
    """Return whether a file or folder belongs to this user; on systems without user ids, each does."""
    try:
        return not hasattr(os, "getuid") or os.stat(path).st_uid == os.getuid()
    except OSError:
        return False


def apply_configuration(compares: bool, app: Any, commands: tuple[str, ...], arguments: Any) -> None:
    """Set the options that were not typed, for cyclopts. UserError for a file that cannot be read, and for an unknown key.

    compares: whether the command takes the options outside the sections of commands
    """
    path = find_file()
    if path is None:
        return
    from cyclopts.config import Dict

    from kgverify.progress import LOGGER

    LOGGER.info("configuration: %s", path)
    values = _choose(path, compares, commands, arguments)
    folder = os.path.dirname(path)
    values = {key: _from_folder(folder, value) if key in _OF_FILES else value for key, value in values.items()}
    Dict(values, source=path, use_commands_as_keys=False)(app, commands, arguments)


def _choose(path: str, compares: bool, commands: tuple[str, ...], arguments: Any) -> dict[str, Any]:
    """Return the values for a command: those outside the sections of commands, and those in its own section."""
    from kgverify.cli.entries import ENTRIES
    from kgverify.cli.options import SHARED_KEYS
    from kgverify.errors import UserError, suggest

    section = table = _read(path)
    values = {}
    own = {name.lstrip("-").replace("-", "_") for each in arguments for name in each.names}
    for key, value in table.items():
        if key in ENTRIES:
            continue
        if key.replace("-", "_") not in SHARED_KEYS:
            fix = suggest(key, (*SHARED_KEYS, *ENTRIES)) or "move it to the table of its command, or remove it"
            raise UserError("unknown key", where=f"{path}: {key}", fix=fix)
        if compares and key.replace("-", "_") in own:
            values[key] = value
    for word in commands:
        section = section.get(word, {})
        if not isinstance(section, dict):
            raise UserError("expected a table of options", where=f"{path}: {word}", fix=f"write [{word}]")
    return {**values, **section}


def _read(path: str) -> dict[str, Any]:
    import tomllib

    from kgverify.errors import UserError

    try:
        with open(path, "rb") as stream:
            found: Any = tomllib.loads(stream.read(_MAX_BYTES).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot be read: {error}", where=path, fix="repair it, or remove it") from error
    for key in () if os.path.basename(path) == NAMES[0] else ("tool", "kgverify"):
        found = found.get(key, {}) if isinstance(found, dict) else {}
    table: dict[str, Any] = found if isinstance(found, dict) else {}
    return table


def _from_folder(folder: str, value: Any) -> Any:
    """Return a value whose paths start from the current folder, if it names a file beside the configuration."""
    if isinstance(value, dict):
        return [
            _from_folder(folder, f"{key}={str(each).lower() if each is True or each is False else each}")
            for key, each in value.items()
        ]
    if isinstance(value, list):
        return [_from_folder(folder, each) for each in value]
    if not isinstance(value, str) or folder == os.getcwd():
        return value
    key, sign, rest = value.rpartition("=")
    head, colon, tail = rest.partition(":")
    path = os.path.join(folder, head)
    is_path = os.path.isfile(path) or (os.sep in head and os.path.exists(path))
    return f"{key}{sign}{path}{colon}{tail}" if is_path else value
