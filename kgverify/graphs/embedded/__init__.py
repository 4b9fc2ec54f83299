"""The knowledge graphs that come with kgverify, each in its own folder."""

from importlib import resources


def list_embedded() -> tuple[str, ...]:
    """List the names of the graphs that come with kgverify."""
    folder = resources.files("kgverify.graphs.embedded")
    return tuple(sorted(entry.name for entry in folder.iterdir() if entry.joinpath("train.txt").is_file()))
