"""Sizes of tables and of weights, rounded up so that programs of about a size share what is compiled."""

import numpy as np
import pytest
import torch

from kgverify import Limits
from kgverify.engines.policy import SHORTEST, make_two_tower
from kgverify.program.atoms import NamedAtom, Variable
from kgverify.program.program import NamedRule, Program
from kgverify.prover.engine import CompiledEngine
from kgverify.prover.program.tables import FACT_HASH, build_tables, round_up
from kgverify.prover.stages.choose import build_parameters
from kgverify.trace.model.columns import CandidateSet


@pytest.mark.parametrize(("size", "rounded"), [(0, 1), (1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (1000, 1024)])
def test_sizes_are_rounded_up_to_powers_of_two(size: int, rounded: int) -> None:
    assert round_up(size) == rounded


def test_programs_of_about_a_size_have_tables_and_weights_of_the_same_shapes() -> None:
    def shapes(num_facts: int, num_rules: int) -> list[tuple[int, ...]]:
        facts = [NamedAtom(f"p{i % 5}", f"a{i}", "b") for i in range(num_facts)]
        x = Variable("X")
        rules = [NamedRule(NamedAtom("q", x, f"a{i}"), (NamedAtom("p0", x, "b"),)) for i in range(num_rules)]
        program, cpu = Program.from_names(facts, rules), torch.device("cpu")
        policy = make_two_tower(program, Limits(), seed=0, embedding=4, hidden=4, blocks=1)
        parameters = build_parameters(policy, cpu, torch.float32, is_rounded=True)
        plain = build_parameters(policy, cpu, torch.float32)
        assert torch.equal(parameters[0][: len(plain[0])], plain[0])
        assert not parameters[0][len(plain[0]) :].any()
        assert torch.equal(parameters[1][: len(plain[1])], plain[1])
        assert all(len(rows) == round_up(len(rows)) for rows in parameters[:2])
        tables = build_tables(program, 6, cpu, is_rounded=True)
        return [tuple(tensor.shape) for tensor in (*tables, *parameters)]

    assert shapes(33, 5) == shapes(50, 8) != shapes(70, 8)


@pytest.mark.parametrize("is_rounded", [False, True])
@pytest.mark.parametrize("num_facts", [0, 1, 33])
def test_every_fact_is_in_its_bucket_and_in_order_of_its_second_argument(num_facts: int, is_rounded: bool) -> None:
    names = np.random.default_rng(1).integers(0, 9, (num_facts, 3))
    program = Program.from_names([NamedAtom(f"p{p}", f"c{a}", f"c{b}") for p, a, b in names.tolist()])
    tables = build_tables(program, 6, torch.device("cpu"), is_rounded=is_rounded)
    facts, num_constants = program.facts.astype(np.int64), max(1, len(program.symbols.constants))
    keys = [(p * num_constants + a) * num_constants + b for p, a, b in facts.tolist()]
    num = len(keys)
    assert tables.fact_keys[:num].tolist() == keys
    assert tables.facts[:num].tolist() == facts.tolist()
    order = sorted(range(num), key=lambda i: (facts[i, 0], facts[i, 2], facts[i, 1]))
    assert tables.facts_by_second[:num].tolist() == order
    by_second = [((p * num_constants + b) * num_constants + a) for p, a, b in facts[order].tolist()]
    assert tables.second_keys[:num].tolist() == by_second
    shift, fullest = tables.bucket_shape.tolist()
    first, sizes = tables.bucket_first.tolist(), tables.bucket_first.diff()
    for key in keys:
        bucket = ((key * FACT_HASH) % 2**64) >> shift
        assert key in tables.bucket_keys[first[bucket] : first[bucket + 1]].tolist()
    assert (first[0], first[-1], int(sizes.max())) == (0, num, fullest)
    never = 2**63 - 1
    for padded in (tables.fact_keys, tables.second_keys, tables.bucket_keys):
        assert set(padded[num:].tolist()) <= {never}


def test_an_evaluation_of_nothing_gives_nothing() -> None:
    program = Program.from_names([NamedAtom("p", "a", "b")])
    engine = CompiledEngine(program, Limits(), SHORTEST, mode="eager", device="cpu")
    nothing = CandidateSet(np.zeros(0, np.int32), np.zeros(0, np.int8), np.zeros((0, 3), np.int32))
    results = engine.evaluate(nothing).results
    assert [(len(each), each.dtype.name) for each in results] == [(0, "int32"), (0, "bool"), (0, "float64")]
