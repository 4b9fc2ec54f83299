"""The files of a graph's folder: which is read for what, and which are not read.

| for | name, in any case |
|---|---|
| train | `train` or `facts` |
| valid | `valid`, `validation`, `val` or `dev` |
| test | `test` |
| rules | `rules`, or as AnyBURL names them: `rules-100`, `rules-50-3` |
| domains | any that begins with `domain` |

The name ends with .txt, .tsv, .csv, .pl, .nt or nothing, and then .gz, .zst, .bz2, .xz, .zip or nothing. The triples may also
be OpenKE's `train2id.txt`, and those that PyKEEN saves: `numeric_triples.tsv.gz`, in one folder, or for each split in
`training`, `validation` and `testing`.
"""

import re
from collections.abc import Collection
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from kgverify.errors import UserError
from kgverify.graphs.formats.ids import OPENKE_NAMES, OPENKE_SUFFIX, PYKEEN_NAMES, PYKEEN_TRIPLES

ROLES: Final = ("train", "valid", "test", "rules", "domains")
SPLITS: Final = ROLES[:3]

_NAME: Final = re.compile(r"(?P<stem>.*?)(?:\.(?:txt|tsv|csv|pl|nt))?(?:\.(?:gz|zst|zstd|bz2|xz|zip))?", re.IGNORECASE)
_STEMS: Final = {
    "train": re.compile(r"train|facts"),
    "valid": re.compile(r"valid|validation|val|dev"),
    "test": re.compile(r"test"),
    "rules": re.compile(r"rules(-\d+)*"),
    "domains": re.compile(r"domain.*"),
}
_PYKEEN_FOLDERS: Final = {"train": "training", "valid": "validation", "test": "testing"}
_NOT_DATA: Final = re.compile(
    r"\..*|.*~|(?:readme|licen[cs]e(?:-\w+)?|copying|notice|citation|changelog|makefile)(?:\.txt)?|thumbs\.db|desktop\.ini"
    r"|.*\.(?:md|rst|html|pdf|bib|cff|py|sh|ipynb)",
    re.IGNORECASE,
)
"""Files that nobody takes for a part of a graph: hidden ones, texts about it, programs."""
_FOREIGN: Final = re.compile(
    r"(?:train|facts)\.(?:nq|ttl|n3|trig|rdf|xml|jsonl?|parquet|feather|arrow|hdf?5|pkl|pickle)"
)
_MAX_LISTED: Final = 12


def find_files(folder: Traversable, shown: str, given: Collection[str]) -> tuple[dict[str, Traversable], list[str]]:
    """Find the file of each role in a graph's folder but for roles given otherwise, and the names of files that are not read.

    UserError for two files of one role, and for a folder without train.
    """
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    # A pipe or a link to nowhere is refused when it is read, not passed over.
    files = [entry for entry in entries if not entry.is_dir()]
    found: dict[str, Traversable] = {}
    taken: set[str] = set()
    for role in ROLES:
        matching = [file for file in files if _STEMS[role].fullmatch(_stem(file.name))]
        if role in given:
            continue
        taken.update(file.name for file in matching)
        if role in SPLITS and not matching:
            matching = [file for file in files if _is_ids_of(file.name, role)] or _find_pykeen(entries, role)
        if role == "train" and not matching:
            # Their errors say how to convert them.
            matching = [file for file in files if _FOREIGN.fullmatch(file.name.lower())]
        if len(matching) > 1:
            raise UserError(
                f"expected one file for {role}, found {' and '.join(file.name for file in matching)}",
                where=shown,
                fix=f"say which with --graph {role}=FILE, or keep one of them in the folder",
            )
        if matching:
            found[role] = matching[0]
            taken.add(matching[0].name)
            if names_ids(matching[0].name):
                taken.update(file.name for file in find_id_files(matching[0]))
                taken.add("base.pth")
    if "train" not in found and "train" not in given:
        raise UserError(
            f"expected a train file (train or facts, with .txt, .tsv, .csv, .pl, .nt or nothing, train2id.txt or "
            f"numeric_triples.tsv.gz), found {render_list([entry.name for entry in entries])}",
            where=shown,
            fix="name the file of the facts train.txt, or give its path with --graph train=FILE",
        )
    unread = [file.name for file in files if file.name not in taken and not _NOT_DATA.fullmatch(file.name)]
    return found, unread


def name_graph(file_name: str, folder_name: str) -> str:
    """Return the name of a graph whose train is this file: the file's, or the folder's if the file is called `train`."""
    match = _NAME.fullmatch(file_name)
    stem = match["stem"] if match else file_name
    return folder_name if folder_name and _STEMS["train"].fullmatch(stem.lower()) else Path(stem).stem


def names_ids(name: str) -> bool:
    """Return whether a file's triples are ids, by its name."""
    return is_openke(name) or _stem(name) == PYKEEN_TRIPLES


def has_dictionaries(file: Traversable) -> bool:
    """Return whether files that name ids are beside a file."""
    folder = Path(str(file)).parent
    names = {_stem(entry.name) for entry in folder.iterdir()} if folder.is_dir() else set()
    return any(names.issuperset(each) for each in (OPENKE_NAMES, PYKEEN_NAMES))


def is_openke(name: str) -> bool:
    """Return whether a file of ids is one of OpenKE, by its name."""
    return _stem(name).endswith(OPENKE_SUFFIX)


def find_id_files(file: Traversable) -> tuple[Path, Path]:
    """Find the files beside a file of ids that name its entities and relations. UserError unless there is one of each."""
    names = OPENKE_NAMES if is_openke(file.name) else PYKEEN_NAMES
    folder = Path(str(file)).parent
    files = [entry for entry in sorted(folder.iterdir()) if entry.is_file()]
    beside = {name: [entry for entry in files if _stem(entry.name) == name] for name in names}
    for name, matching in beside.items():
        if len(matching) != 1:
            found = " and ".join(each.name for each in matching) or "none"
            raise UserError(
                f"expected one file {name} beside it, with the name of each id, found {found}",
                where=str(file),
                fix=f"put {' and '.join(names)} into its folder",
            )
    (entities,), (relations,) = beside.values()
    return entities, relations


def render_list(names: list[str]) -> str:
    """Return the first of some names."""
    if len(names) > _MAX_LISTED:
        return f"{', '.join(names[:_MAX_LISTED])} and {len(names) - _MAX_LISTED} more"
    return ", ".join(names) or "nothing"


def _stem(name: str) -> str:
    match = _NAME.fullmatch(name)
    return match["stem"].lower() if match else name.lower()


def _is_ids_of(name: str, split: str) -> bool:
    stem = _stem(name)
    return stem.endswith(OPENKE_SUFFIX) and bool(_STEMS[split].fullmatch(stem.removesuffix(OPENKE_SUFFIX)))


def _find_pykeen(entries: list[Traversable], split: str) -> list[Traversable]:
    """Find the triples that PyKEEN saved for a split: in a folder of its own, or here for train."""
    found = [entry for entry in entries if split == "train" and _stem(entry.name) == PYKEEN_TRIPLES and entry.is_file()]
    for entry in entries:
        if entry.name == _PYKEEN_FOLDERS[split] and entry.is_dir():
            found += [file for file in entry.iterdir() if _stem(file.name) == PYKEEN_TRIPLES]
    return found
