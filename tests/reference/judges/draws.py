"""The draw of corruptions, from its definition in docs/semantics.md alone, in plain integers."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

import kgreference

SEEDS: Final = (0, 1, 7, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**32 + 7, 2**53 + 1, 2**63, 2**64 - 1)
INDICES: Final = [2**bits + offset for bits in (0, 7, 8, 9, 15, 16, 31, 32) for offset in (-1, 0, 1)]

Triple = tuple[str, str, str]


class Draw(NamedTuple):
    """A draw of k corruptions (None: all) of one side of a query; ``known`` are the triples of all splits."""

    train: list[Triple]
    queries: list[Triple]
    known: list[Triple]
    domains: dict[str, list[str]]
    query: Triple
    index: int
    side: int
    k: int | None
    seed: int


def mix(x: int) -> int:
    """Return the next output of splitmix64 from the state x."""
    x = (x + 11400714819323198485) % 18446744073709551616
    x = (x ^ x // 1073741824) * 13787848793156543929 % 18446744073709551616
    x = (x ^ x // 134217728) * 10723151780598845931 % 18446744073709551616
    return x ^ x // 2147483648


def draw_cases(seed: int) -> Iterator[list[Draw]]:
    """Yield draws from one graph each, without end; one graph in 50 has more entities than 16 bits can number."""
    number = 0
    while True:
        rng = random.Random(f"draws {seed}:{number}")
        num = 70_000 if number % 50 == 49 else rng.choice((1, 2, 3, 5, 8, 20, 20, 60, 300))
        yield _draw_graph(rng, num)
        number += 1


def _draw_graph(rng: random.Random, num: int) -> list[Draw]:
    names = [f"e{i}" for i in range(num)]
    rng.shuffle(names)
    few = names[: rng.choice((1, 3, 30, num))]
    num_triples = rng.choice((1, 3, 12, 40))
    triples = [(f"r{rng.randrange(3)}", rng.choice(few), rng.choice(few)) for _ in range(num_triples)]
    if rng.random() < 0.4:  # many corruptions of one query are known
        relation, first, second = triples[0]
        triples += [(relation, first, name) for name in few[:40]] + [(relation, name, second) for name in few[5:30]]
    rng.shuffle(triples)
    cut = rng.randrange(1, len(triples) + 1)
    train, queries = triples[:cut], triples[cut:] or triples[:1]
    known = [*train, *queries] if rng.random() < 0.7 else [*train]  # a query may not be among the known triples
    queries = [*queries, ("r0", rng.choice(few), rng.choice(few))]
    domains: dict[str, list[str]] = {}
    if num > 1000:
        domains = {"all": names} if rng.random() < 0.5 else {"all": names[num // 2 :], "few": few}
    elif rng.random() < 0.6:
        seen = sorted({name for _, *pair in known for name in pair})
        for i in range(rng.randint(1, 4)):
            size = rng.choice((0, 1, 2, num // 2, num))
            domains[f"d{i}"] = rng.sample(names, min(size, num)) + rng.sample(seen, rng.randint(0, len(seen)))
    if not domains and num > len(few):
        queries += [("r1", left, right) for left, right in itertools.pairwise(names)][:500]
    draws = []
    for _ in range(6 if num <= 1000 else 2):
        query = rng.choice(queries)
        k = rng.choice(
            (None, 0, 1, 2, 5, num - 1, num, num + 5, rng.randrange(num + 1)) if num <= 1000 else (1, 5, 300)
        )
        seed = rng.choice((*SEEDS, rng.randrange(2**64), rng.randrange(2**32, 2**33)))
        index = rng.choice((*INDICES, rng.randrange(1000), rng.randrange(70_000)))
        draws.append(Draw(train, queries, known, domains, query, index, rng.randrange(2), k, seed))
    return draws


def expected(draw: Draw) -> list[Triple]:
    """Return the candidates: the query, then its corruptions."""
    ids: dict[str, int] = {}
    for _, first, second in [*draw.train, *draw.queries]:
        ids.setdefault(first, len(ids))
        ids.setdefault(second, len(ids))
    for members in draw.domains.values():
        for name in members:
            ids.setdefault(name, len(ids))

    relation = draw.query[0]
    seen = {triple[1 + draw.side] for triple in draw.known if triple[0] == relation}
    domain = {name for members in draw.domains.values() if any(name in seen for name in members) for name in members}
    if not draw.domains or any(all(name not in members for members in draw.domains.values()) for name in seen):
        domain = set(ids)

    def corrupted(name: str) -> Triple:
        return (relation, name, draw.query[2]) if draw.side == 0 else (relation, draw.query[1], name)

    barred = {draw.query, *draw.known}
    eligible = [name for name in domain if corrupted(name) not in barred]
    drawn = eligible
    if draw.k is not None:
        key = mix(mix(mix(draw.seed) ^ draw.index) ^ draw.side)
        priority = {mix(key ^ ids[name]): name for name in eligible}
        drawn = [priority[each] for each in sorted(priority)[: draw.k]]
    return [draw.query, *(corrupted(name) for name in sorted(drawn, key=ids.__getitem__))]


def judge_draws(graphs: list[list[Draw]], seen: Counter[str]) -> list[str]:
    """Return the draws in which the reference differs; count in ``seen`` what occurred."""
    wrong = []
    for draws in graphs:
        train, queries, known, domains = draws[0][:4]
        constants = [name for members in domains.values() for name in members]
        try:
            program = kgreference.Program.from_names(train, (), queries, constants)
            corrupter = kgreference.Corrupter(program, [program.encode(each) for each in known], domains)
        except Exception as error:
            wrong.append(f"{train} {domains}: {error!r}")
            continue
        for draw in draws:
            wanted = expected(draw)
            try:
                atoms = corrupter.candidates(program.encode(draw.query), draw.index, draw.side, draw.k, draw.seed)
                found = [program.decode(atom) for atom in atoms]
            except Exception as error:
                wrong.append(f"{draw.query} {draw[5:]}: {error!r}")
                continue
            if found != wanted:
                wrong.append(f"{draw.query} {draw[5:]}: expected {wanted[:20]}, found {found[:20]}")
            num = len(wanted) - 1
            seen["draws"] += 1
            seen["an index over 255"] += draw.index > 255 and draw.k is not None and num > 0
            seen["an index over 65,535"] += draw.index > 65_535 and draw.k is not None and num > 0
            seen["a seed over 32 bits"] += draw.seed >= 2**32 and draw.k is not None and num > 0
            seen["a short draw"] += draw.k is not None and num < draw.k
            seen["a real choice"] += draw.k is not None and 0 < num == draw.k
            seen["all"] += draw.k is None
            seen["an empty domain"] += num == 0
            seen["domains"] += bool(draw.domains)
            seen["an unknown query"] += draw.query not in draw.known
            seen["more than 65,536 entities"] += len(program.constants) > 65_536 and num > 0
    return wrong
