"""Encoding and decoding the names, the rules and the header of a trace as datasets."""

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from kgverify.errors import UserError
from kgverify.program.atoms import Atom
from kgverify.program.program import Rule, Symbols
from kgverify.trace.model.columns import KNOWLEDGE_GRAPH
from kgverify.trace.model.digests import COUNTED
from kgverify.trace.model.schema import Arrays, Schema, TraceLevel


def encode_rules(rules: Sequence[Rule]) -> Arrays:
    """Encode the atoms of the rules, each head first, and the number of atoms of each rule."""
    atoms = [atom for rule in rules for atom in (rule.clause_head, *rule.body)]
    return {
        "program/rule_atoms": np.array(atoms, np.int32).reshape(-1, 3),
        "program/rule_lengths": np.array([1 + len(rule.body) for rule in rules], np.uint16),
    }


def decode_rules(arrays: Arrays) -> tuple[Rule, ...] | None:
    """Decode the rules; None if the file has none. The caller has checked the lengths."""
    if "program/rule_lengths" not in arrays:
        return None
    atoms = iter([Atom(*row) for row in arrays["program/rule_atoms"].tolist()])
    return tuple(
        Rule(next(atoms), tuple(islice(atoms, length - 1))) for length in arrays["program/rule_lengths"].tolist()
    )


def encode_symbols(symbols: Symbols, where: str) -> Arrays:
    """Encode names as consecutive UTF-8 bytes, with the offsets at which they begin and end."""
    arrays: Arrays = {}
    for kind, names in (("predicates", symbols.predicates), ("constants", symbols.constants)):
        encoded = []
        for i, name in enumerate(names):
            try:
                encoded.append(name.encode())
            except UnicodeEncodeError as error:
                raise UserError(
                    f"name {i} is {name!r}, expected text that UTF-8 can encode",
                    where=f"{where}:symbols/{kind}_bytes",
                    fix="decode the input files as UTF-8",
                ) from error
        if len(set(names)) != len(names):
            raise _duplicate_name(names, f"{where}:symbols/{kind}_bytes")
        offsets = np.zeros(len(encoded) + 1, np.uint64)
        offsets[1:] = np.cumsum([len(name) for name in encoded], dtype=np.uint64)
        arrays[f"symbols/{kind}_bytes"] = np.frombuffer(b"".join(encoded), np.uint8)
        arrays[f"symbols/{kind}_offsets"] = offsets
    return arrays


def decode_symbols(arrays: Arrays, where: str) -> Symbols:
    """Decode names. UserError for offsets that do not fit, bad UTF-8, or a duplicate name."""
    return Symbols(_decode_names(arrays, "predicates", where), _decode_names(arrays, "constants", where))


def _decode_names(arrays: Arrays, kind: str, where: str) -> tuple[str, ...]:
    content, offsets = arrays[f"symbols/{kind}_bytes"], arrays[f"symbols/{kind}_offsets"]
    ascends = len(offsets) > 0 and offsets[0] == 0 and bool((offsets[1:] >= offsets[:-1]).all())
    if not ascends or int(offsets[-1]) != len(content):
        raise UserError(
            f"offsets do not ascend from 0 to the {len(content)} bytes of the names",
            where=f"{where}:symbols/{kind}_offsets",
            fix="write one offset more than there are names: where each begins, then where the last ends",
        )
    where = f"{where}:symbols/{kind}_bytes"
    raw, bounds = content.tobytes(), offsets.tolist()
    try:
        names = tuple(raw[bounds[i] : bounds[i + 1]].decode() for i in range(len(bounds) - 1))
    except UnicodeDecodeError as error:
        raise UserError(f"found bytes that are not UTF-8: {error}", where=where, fix="write names as UTF-8") from error
    if len(set(names)) != len(names):
        raise _duplicate_name(names, where)
    return names


def _duplicate_name(names: tuple[str, ...], where: str) -> UserError:
    first = {name: i for i, name in reversed([*enumerate(names)])}
    second = next(i for i, name in enumerate(names) if first[name] != i)
    return UserError(
        f"ids {first[names[second]]} and {second} have the same name {names[second]!r}, expected one id per name",
        where=where,
        fix="give each name one id",
    )


def lower_arrays(arrays: Arrays, level: TraceLevel, schema: Schema = KNOWLEDGE_GRAPH) -> Arrays:
    """Return the datasets that this lower level keeps, with a header of this level.

    Level `digests` leaves out the program as well: the header identifies it by its hash.
    """
    kept = {path: array for path, array in arrays.items() if schema.is_kept(path, level)}
    raw: dict[str, Any] = msgspec.json.decode(arrays["header"].tobytes())
    absent = set(raw.get("absent", ()))
    if "steps/num_resolvents" in arrays:
        absent |= {name for name in COUNTED if name.replace(".", "/") not in arrays}
    kept["header"] = np.frombuffer(
        msgspec.json.encode(raw | {"level": level.value, "absent": uncounted(level, absent)}),
        np.uint8,
    )
    return kept


def uncounted(level: TraceLevel, absent: Collection[str]) -> list[str]:
    """Select the columns unknown to a prover that a header of this level must name."""
    return sorted(name for name in absent if level is TraceLevel.DIGESTS and name in COUNTED)
