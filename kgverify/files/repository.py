"""The user's git repository: its commits, and the files of a commit in a folder apart from the user's working tree."""

import os
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import msgspec

from kgverify.errors import UserError
from kgverify.files.writing import remove_tree

_OPTIONS: Final = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false")
"""Options with which git runs none of the user's hooks."""


class Commit(msgspec.Struct, frozen=True):
    """A commit: its full name, the first line of its message, its author and its date."""

    name: str
    subject: str
    author: str
    date: str

    def __str__(self) -> str:
        """Return the commit in a line."""
        return f"{self.name[:10]} {self.subject} ({self.author}, {self.date})"


class Repository:
    """The git repository that contains the current folder. UserError without one, or without git.

    root:   the top of the user's working tree, which is only read
    inside: the current folder, relative to the root
    common: the folder of git that all working trees share
    """

    def __init__(self) -> None:
        fix = "change to a folder of the repository whose commits are to be judged"
        inside, common, self._folder = self._ask(
            "rev-parse", "--show-prefix", "--git-common-dir", "--absolute-git-dir", fix=fix
        )
        here = Path.cwd()
        self.inside, self.common = Path(inside), (here / common).resolve()
        self.root = here.parents[len(self.inside.parts) - 1] if inside else here

    def find_commit(self, name: str, where: str) -> str:
        """Return the full name of a commit. UserError if there is no such commit."""
        fix = "give a commit, a tag or a branch; a shallow clone lacks commits: git fetch --unshallow"
        return self._ask("rev-parse", "--verify", f"{name}^{{commit}}", where=f"{where} {name}", fix=fix)[0]

    def is_ancestor(self, first: str, second: str) -> bool:
        """Return whether a commit is an ancestor of another, or the same."""
        return not self._ask("rev-list", "-n1", first, "--not", second)

    def list_between(self, good: Collection[str], bad: str) -> list[str]:
        """Return a bad commit and its ancestors without those of good ones, best to judge first."""
        lines = self._ask("rev-list", "--bisect-all", bad, "--not", *good)
        return [line.split()[0] for line in lines]

    def list_parents(self, commit: str) -> list[str]:
        """Return the parents of a commit."""
        return self._ask("rev-list", "-n1", "--parents", commit)[0].split()[1:]

    def describe(self, commit: str) -> Commit:
        """Return a commit with its message, author and date."""
        lines = self._ask("log", "-1", "--no-show-signature", "--format=%s%n%an%n%as", commit)
        return Commit(commit, *(line.encode(errors="replace").decode() for line in lines))

    def check_out(self, commit: str, folder: Path) -> Path:
        """Write the files of a commit, and nothing else, into `tree` in a folder, with an index of its own.

        The user's working tree, index, branches and list of worktrees stay as they are. Submodules are empty folders.
        """
        tree, index = folder / "tree", folder / "index"
        if not index.is_file():
            remove_tree(tree)
        tree.mkdir(exist_ok=True)
        own = {"GIT_DIR": self._folder, "GIT_WORK_TREE": str(tree), "GIT_INDEX_FILE": str(index)}
        self._ask("read-tree", "--reset", "-u", commit, folder=tree, own=own)
        self._ask("clean", "-ffdxq", folder=tree, own=own)
        return tree

    def _ask(
        self, *words: str, where: str = "git", fix: str = "", folder: Path | None = None, own: Mapping[str, str] = {}
    ) -> list[str]:
        """Return the lines that git prints. UserError with the error that it prints."""
        try:
            done = subprocess.run(["git", *_OPTIONS, *words], cwd=folder, env=os.environ | own, capture_output=True)
        except OSError as error:
            raise UserError(f"cannot be run: {error.strerror}", where="git", fix="install git") from None
        if done.returncode:
            message = os.fsdecode(done.stderr).strip().split("\n")[0] or f"git {words[0]} failed"
            raise UserError(message.removeprefix("fatal: "), where=where, fix=fix)
        return os.fsdecode(done.stdout).removesuffix("\n").split("\n") if done.stdout else []
