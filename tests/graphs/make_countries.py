"""Build the embedded Countries graph (S3) from its table: `python tests/graphs/make_countries.py`.

The split follows the rule of Bouchard, Singh and Trouillon (On approximate reasoning capabilities of
low-rank vector spaces, AAAI Spring Symposium 2015), drawn anew: the countries of test and valid are taken
among those with a land neighbour, so that each keeps a neighbour in train, in an order that a digest of the
name fixes.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[2] / "kgverify" / "graphs" / "embedded" / "countries"
NUM_HELD_OUT: Final = 24

_RULES: Final = """\
r1:1:neighborOf(X,Y), locatedInCR(Y,Z) -> locatedInCR(X,Z)
r2:1:neighborOf(X,Y), neighborOf(Y,K), locatedInCR(K,Z) -> locatedInCR(X,Z)
r3:1:locatedInCS(X,Y), locatedInSR(Y,Z) -> locatedInCR(X,Z)
"""


Table = tuple[dict[str, str], dict[str, str], dict[str, tuple[str, ...]]]
"""The region of each subregion, the subregion of each country, and the land neighbours of each country."""


def parse_table(text: str) -> Table:
    """Parse the table in lines of two and of three fields, separated by tabs. ValueError if a border is in one row only."""
    regions, subregions, neighbours = table = ({}, {}, {})
    for line in text.splitlines():
        if not line.startswith("#"):
            name, larger, *others = line.split("\t")
            (subregions if others else regions)[name] = larger
            if others:
                neighbours[name] = () if others == ["-"] else tuple(others[0].split(" "))
    for country, others in neighbours.items():
        if any(country not in neighbours[other] for other in others):
            raise ValueError(f"a border of {country} is not in both rows")
    return table


def choose_held_out(neighbours: Mapping[str, tuple[str, ...]]) -> tuple[list[str], list[str]]:
    """Choose the countries of test and of valid: each has a neighbour that is in neither."""
    chosen: list[str] = []
    for country in sorted(neighbours, key=lambda name: hashlib.sha256(name.encode()).digest()):
        attempt = {*chosen, country}
        if all(set(neighbours[c]) - attempt for c in attempt):
            chosen.append(country)
        if len(chosen) == 2 * NUM_HELD_OUT:
            break
    return sorted(chosen[:NUM_HELD_OUT]), sorted(chosen[NUM_HELD_OUT:])


def render_countries(text: str) -> dict[str, str]:
    """Return the files of the graph, by name, from the text of `countries.tsv`."""
    regions, subregions, neighbours = parse_table(text)
    test, valid = choose_held_out(neighbours)
    held_out = {*test, *valid}
    without_region = held_out.union(*(neighbours[country] for country in held_out))

    def region_fact(country: str) -> str:
        return f"locatedInCR({country},{regions[subregions[country]]}).\n"

    train = [
        *(f"locatedInSR({sub},{region}).\n" for sub, region in sorted(regions.items())),
        *(f"locatedInCS({c},{sub}).\n" for c, sub in sorted(subregions.items()) if c not in held_out),
        *(region_fact(c) for c in sorted(subregions) if c not in without_region),
        *(f"neighborOf({c},{other}).\n" for c in sorted(neighbours) for other in sorted(neighbours[c])),
    ]
    domains = {
        "regions": sorted(set(regions.values())),
        "subregions": sorted(regions),
        "countries": sorted(subregions),
    }
    return {
        "train.txt": "".join(train),
        "valid.txt": "".join(map(region_fact, valid)),
        "test.txt": "".join(map(region_fact, test)),
        "rules.txt": _RULES,
        "domains.txt": "".join(f"{name} {' '.join(members)}\n" for name, members in domains.items()),
    }


if __name__ == "__main__":
    for name, text in render_countries((FOLDER / "countries.tsv").read_text(encoding="utf-8")).items():
        (FOLDER / name).write_text(text, encoding="utf-8", newline="\n")
