"""The command line: each command reads its options, makes one call, prints, and returns an exit code."""

from kgverify.cli.app import main

__all__ = ["main"]
