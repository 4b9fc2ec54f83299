"""Many random programs and Countries as one program, so that one compilation serves them all."""

import random
from typing import NamedTuple

from random_programs import candidates_of, merge, random_program, random_queries

from kgverify import Limits, load_graph
from kgverify.program.program import Program
from kgverify.trace.model.columns import CandidateSet


class Merged(NamedTuple):
    """Candidates of every part; and further ones of another number."""

    program: Program
    limits: Limits
    candidates: CandidateSet
    other_candidates: CandidateSet


def merge_random_programs(num_programs: int) -> Merged:
    rng = random.Random(2026)
    countries = load_graph("countries")
    parts = [random_program(rng, prefix=f"part{i}_") for i in range(num_programs)]
    program = merge([countries.program, *parts])
    queries = [query for part in parts for query in random_queries(rng, part, 6)]
    other_queries = [query for part in parts for query in random_queries(rng, part, 2)]
    # Tight enough for every outcome, and for both kinds of drop, to occur.
    limits = Limits(max_depth=8, max_atoms=4, max_resolvents=24)
    return Merged(
        program,
        limits,
        candidates_of(program, [*queries, *countries.test]),
        candidates_of(program, other_queries),
    )
