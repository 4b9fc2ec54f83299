"""Run commands in this process, in a folder of a stranger, and print each way in which code of the folder was run.

usage: python opening.py FOLDER < commands.json, a list of the words of each command

An audit hook sees what Python imports, executes, unpickles and starts; canaries in the folder leave the file EXECUTED.
"""

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1]).resolve()
STARTED = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "socket.connect")
seen: list[str] = []
now = ""


def is_inside(path: object) -> bool:
    if not isinstance(path, str) or path.startswith("<"):
        return False
    return os.path.abspath(path).startswith(f"{FOLDER}{os.sep}") or os.path.abspath(path) == str(FOLDER)


def watch(event: str, arguments: tuple[Any, ...]) -> None:
    if not now:
        return
    if event == "import":
        name, file, path, *_ = arguments
        if is_inside(file) or any(is_inside(each) for each in path or ()):
            seen.append(f"{now}: imports {name} while the folder is searched")
    elif event == "exec" and is_inside(getattr(arguments[0], "co_filename", None) or "-"):
        seen.append(f"{now}: executes {arguments[0].co_filename}")
    elif event == "compile" and b"EXECUTED" in bytes(str(arguments[0]), "utf-8", "replace"):
        seen.append(f"{now}: compiles a text of the folder")
    elif event == "pickle.find_class":
        seen.append(f"{now}: unpickles {arguments}")
    elif event == "ctypes.dlopen" and arguments[0] is not None and is_inside(arguments[0]):
        seen.append(f"{now}: loads {arguments[0]}")
    # The import of a library may ask the standard library's `platform` for the processor, which starts this program.
    elif event in STARTED and arguments[1:2] != (["uname", "-p"],):
        seen.append(f"{now}: {event} {arguments[:2]}")


def main() -> None:
    global now
    commands = json.load(sys.stdin)
    from kgverify.cli.app import run

    os.chdir(FOLDER)
    sys.addaudithook(watch)
    codes = {}
    for words in commands:
        sys.argv, now = ["kgverify", *words], " ".join(words)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run()
        codes[now] = [code, err.getvalue()[-300:]]
        if (FOLDER / "EXECUTED").exists():
            seen.append(f"{now}: ran {(FOLDER / 'EXECUTED').read_text()}")
            (FOLDER / "EXECUTED").unlink()
    now = ""
    print(json.dumps({"seen": seen, "codes": codes}))


main()
