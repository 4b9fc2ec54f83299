"""`python -m kgverify` is the `kgverify` command."""

import os
import sys

if __name__ == "__main__":
    # Python searches the current folder first, where a stranger's files may be; the command `kgverify` does not.
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():
        del sys.path[0]
    from kgverify.cli import main

    main()
