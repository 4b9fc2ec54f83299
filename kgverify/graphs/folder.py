"""The files of a graph's folder: the role of each, and the files that are not read.

| role | name, in upper or lower case |
|---|---|
| train | `train` or `facts` |
| valid | `valid`, `validation`, `val` or `dev` |
| test | `test` |
| rules | `rules`, or AnyBURL's names: `rules-100`, `rules-50-3` |
| domains | any name that begins with `domain` |

The name ends with .txt, .tsv, .csv, .pl, .nt or nothing, and then .gz, .zst, .bz2, .xz, .zip or nothing. The triples may also
be in OpenKE's `train2id.txt`, or in `numeric_triples.tsv.gz`, which PyKEEN saves in one folder, or for each split in
`training`, `validation` and `testing`.
"""

import re
from collections.abc import Collection
from importlib.resources.abc import Traversable
from itertools import chain
from pathlib import Path
from typing import Final

from kgverify.errors import UserError
from kgverify.graphs.formats.ids import OPENKE, PYKEEN, IdFormat

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
"""Files that nobody takes for a part of a graph: hidden files, texts about the graph, and programs."""
_FOREIGN: Final = re.compile(
    r"(?:train|facts)\.(?:nq|ttl|n3|trig|rdf|xml|jsonl?|parquet|feather|arrow|hdf?5|pkl|pickle)"
)
_MAX_LISTED: Final = 12


def find_files(folder: Traversable, shown: str, given: Collection[str]) -> tuple[dict[str, Traversable], list[str]]:
    """Find the file of each role in a graph's folder, except the roles in `given`, and the names of files that are not read.

    UserError for two files with one role, and for a folder without train.
    """
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    found: dict[str, Traversable] = {}
    for role in (each for each in ROLES if each not in given):
        matching = _find_matching(entries, role)
        if len(matching) > 1:
            raise UserError(
                f"expected one file for {role}, found {' and '.join(file.name for file in matching)}",
                where=shown,
                fix=f"say which with --graph {role}=FILE, or keep one of them in the folder",
            )
        found.update((role, file) for file in matching)
    if "train" not in found and "train" not in given:
        raise UserError(
            f"expected a train file (train or facts, with .txt, .tsv, .csv, .pl, .nt or nothing, train2id.txt or "
            f"numeric_triples.tsv.gz), found {render_list([entry.name for entry in entries])}",
            where=shown,
            fix="name the file of the facts train.txt, or give its path with --graph train=FILE",
        )
    of_ids = [file for file in found.values() if find_id_format(file.name) is not None]
    taken = {file.name for file in (*found.values(), *chain(*map(find_id_files, of_ids)))}
    taken |= {"base.pth"} if of_ids else set()
    names = [entry.name for entry in entries if not entry.is_dir() and entry.name not in taken]
    return found, [name for name in names if not _NOT_DATA.fullmatch(name)]


def _find_matching(entries: list[Traversable], role: str) -> list[Traversable]:
    """Find the files of a role: by its names; else files of ids; else, for train, files in formats that kgverify refuses."""
    # A pipe or a broken link is not ignored here, so that reading it raises the error.
    files = [entry for entry in entries if not entry.is_dir()]
    named = [file for file in files if _STEMS[role].fullmatch(_stem(file.name))]
    if named or role not in SPLITS:
        return named
    return (
        [file for file in files if (stem := _stem(file.name)).endswith("2id") and _STEMS[role].fullmatch(stem[:-3])]
        or [file for file in _list_saved(entries, role) if PYKEEN.stem.fullmatch(_stem(file.name)) and file.is_file()]
        # Their errors say how to convert them.
        or [file for file in files if role == "train" and _FOREIGN.fullmatch(file.name.lower())]
    )


def _list_saved(entries: list[Traversable], split: str) -> list[Traversable]:
    """List where PyKEEN may have saved the triples of a split: in the split's own folder, or here for train."""
    folders = [entry for entry in entries if entry.name == _PYKEEN_FOLDERS[split] and entry.is_dir()]
    return [*chain(*(folder.iterdir() for folder in folders)), *(entries if split == "train" else [])]


def name_graph(file_name: str, folder_name: str) -> str:
    """Name a graph after its train file, or after the folder if the file is called `train`."""
    match = _NAME.fullmatch(file_name)
    stem = match["stem"] if match else file_name
    return folder_name if folder_name and _STEMS["train"].fullmatch(stem.lower()) else Path(stem).stem


def find_id_format(name: str) -> IdFormat | None:
    """Return the format of a file whose triples are ids, by its name; None for any other file."""
    return next((each for each in (OPENKE, PYKEEN) if each.stem.fullmatch(_stem(name))), None)


def has_dictionaries(file: Traversable) -> bool:
    """Return whether the folder of a file also contains files that name ids."""
    folder = Path(str(file)).parent
    names = {_stem(entry.name) for entry in folder.iterdir()} if folder.is_dir() else set()
    return any(names.issuperset(each.names) for each in (OPENKE, PYKEEN))


def find_id_files(file: Traversable) -> tuple[Path, Path]:
    """Find the two files that name the entities and relations of a file of ids. UserError unless there is one of each."""
    form = find_id_format(file.name)
    assert form is not None
    entries = sorted(Path(str(file)).parent.iterdir())
    beside = [[entry for entry in entries if _stem(entry.name) == name and entry.is_file()] for name in form.names]
    for name, matching in zip(form.names, beside, strict=True):
        if len(matching) != 1:
            found = " and ".join(each.name for each in matching) or "none"
            raise UserError(
                f"expected one file {name} beside it, with the name of each id, found {found}",
                where=str(file),
                fix=f"put {' and '.join(form.names)} into its folder",
            )
    (entities,), (relations,) = beside
    return entities, relations


def render_list(names: list[str]) -> str:
    """Return the first few names as a text."""
    if len(names) > _MAX_LISTED:
        return f"{', '.join(names[:_MAX_LISTED])} and {len(names) - _MAX_LISTED} more"
    return ", ".join(names) or "nothing"


def _stem(name: str) -> str:
    match = _NAME.fullmatch(name)
    return match["stem"].lower() if match else name.lower()
