"""`python -m kgverify` is the `kgverify` command."""

import os
import sys
from contextlib import suppress

if __name__ == "__main__":
    # Python searches the current folder first, which may contain a stranger's files. The command `kgverify` does not.
    # A deleted folder is not searched.
    with suppress(OSError):
        if not sys.flags.safe_path and sys.path[0] == os.getcwd():
            del sys.path[0]
    from kgverify.cli import main

    main()
