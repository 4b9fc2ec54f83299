"""A program that runs scripts in one process, since some packages take seconds to import."""

RUN = """
import contextlib, io, json, runpy, sys
for path in sys.argv[1:]:
    output, code = io.StringIO(), 0
    with contextlib.redirect_stdout(output):
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            code = int(end.code or 0)
    print(json.dumps([path, code, output.getvalue()]))
"""
"""Runs the scripts that are its arguments, and prints a line of JSON for each: its path, its exit code, and its output."""
