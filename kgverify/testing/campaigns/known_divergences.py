"""Known divergences: a reviewed file of signatures, each with its issue, its reason and the day it expires."""

from collections.abc import Collection
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from kgverify.errors import UserError
from kgverify.files.decoding import read_toml

WITHIN: Final = 10_000
"""The default number of problems after which a known divergence that did not occur counts as gone."""


class KnownStatus(StrEnum):
    """The status of a known divergence; EXPIRED and GONE fail a campaign.

    OCCURS:     it occurs, and is allowed to
    EXPIRED:    its day is past, whether it occurs or not
    GONE:       it no longer occurs
    NOT_JUDGED: too few problems were tried to tell, and no reproducer of it was replayed
    """

    OCCURS = "occurs"
    EXPIRED = "expired"
    GONE = "gone"
    NOT_JUDGED = "not judged"


class KnownDivergence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of the file.

    signature: as `kgverify fuzz` and `kgverify replay` print it
    issue:     where it is tracked
    reason:    why it is tolerated for now
    expires:   the last day on which it is tolerated
    within:    a number of problems in which it certainly occurs
    """

    signature: str
    issue: str
    reason: str
    expires: date
    within: int = WITHIN

    def judge(self, seen: Collection[str], replayed: Collection[str], num_problems: int, today: date) -> KnownStatus:
        """Return the status of the divergence.

        seen:         signatures that occurred, in generated problems or in a reproducer
        replayed:     signatures of the reproducers that were run again
        num_problems: generated and compared
        """
        if today > self.expires:
            return KnownStatus.EXPIRED
        if self.signature in seen:
            return KnownStatus.OCCURS
        is_judged = self.signature in replayed or num_problems >= self.within
        return KnownStatus.GONE if is_judged else KnownStatus.NOT_JUDGED


class _File(msgspec.Struct, forbid_unknown_fields=True):
    known: list[KnownDivergence] = []


def read_known(path: Path) -> tuple[KnownDivergence, ...]:
    """Read the entries of a file. UserError if it cannot be read, is not valid, or repeats a signature."""
    where = str(path)
    data = read_toml(path, purpose="a TOML file of known divergences", fix="write [[known]] entries")
    try:
        known = msgspec.convert(data, _File).known
    except msgspec.ValidationError as error:
        raise UserError(
            str(error), where=where, fix="give each [[known]] entry signature, issue, reason and expires = YYYY-MM-DD"
        ) from None
    seen = set()
    for number, entry in enumerate(known, 1):
        location = f"{where}: entry {number}"
        for name in ("signature", "issue", "reason"):
            if not getattr(entry, name).strip():
                raise UserError(f"its {name} is empty", where=location, fix=f"say its {name}")
        if entry.within < 1:
            raise UserError(f"expected within of 1 or more, found {entry.within}", where=location, fix="leave it out")
        if entry.signature in seen:
            raise UserError(f"{entry.signature!r} is there twice", where=location, fix="leave one of the two")
        seen.add(entry.signature)
    return tuple(known)
