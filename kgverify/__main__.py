"""`python -m kgverify` is the `kgverify` command."""

from kgverify.cli import main

if __name__ == "__main__":
    main()
