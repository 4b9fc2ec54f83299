"""The command line: each command reads its options, makes one call, prints, and returns an exit code.

Internal: it may change without notice. Users import from `kgverify` itself.
"""

from kgverify.cli.app import main

__all__ = ["main"]
