"""`kgverify.tap`: a tensor engine shows its stages in eager and in compiled code, and is compared by them."""

import numpy as np
import pytest
import torch

import kgverify as kv
from kgverify.engines.adapters import taps
from kgverify.engines.adapters.taps import call_with_taps, read_taps
from kgverify.engines.policy import SHORTEST
from kgverify.engines.protocol import positions_of, take_position
from kgverify.program.atoms import parse_atoms
from kgverify.program.limits import Dialect
from kgverify.program.outcomes import Stage
from kgverify.program.program import parse_rules
from kgverify.verification.rounding import MARGIN, bound_tapped

GRAPH = kv.KnowledgeGraph(
    "small",
    train=parse_atoms("q(a,b) q(b,c) r(c,a) r(a,b)"),
    test=parse_atoms("p(a,b) p(b,c) p(c,a) p(b,b) q(a,b) q(b,c)"),
    rules=parse_rules("p(X,Y) q(X,Y); p(X,Y) r(X,Y)"),
)
LIMITS = kv.Limits(
    max_depth=4,
    max_atoms=3,
    exclude_query=False,
    dialect=Dialect(filters=("prune", "close", "max_atoms", "max_resolvents")),
)
FAULTS = ("match_rules", "match_facts", "resolve", "prune", "close", "score", "choose")


def align(atoms):
    order = (atoms[..., 0] == 0).int().argsort(dim=-1, stable=True)
    return atoms.gather(-2, order[..., None].expand_as(atoms))


class Tapped(kv.TensorEngine):
    """Resolves ground atoms with rules of one body atom; a number switches on a fault."""

    max_atoms = 3
    fault = ""
    backend = ""

    def setup(self):
        self.encoding = kv.Encoding(first_variable=20, true=18, false=19)
        self.facts = self.encode(self.program.facts)
        self.rules = torch.stack([self.encode([rule.clause_head, *rule.body]) for rule in self.program.rules])
        self.run = self.body
        if self.backend:
            self.run = torch.compile(self.body, fullgraph=True, dynamic=False, backend=self.backend)

    def expand(self, states, next_variable, excluded):
        successors, count, scores, choice = self.run(states, excluded)
        return {
            "successors": successors,
            "counts": count,
            "next_variable": next_variable,
            "scores": scores,
            "choice": choice,
        }

    def body(self, states, excluded):
        goal, rest, fault = states[:, 0], states[:, 1:], self.fault
        by_rule = self.rules[:, 0, 0] == goal[:, None, 0]
        if fault == "match_rules":
            by_rule = by_rule & (torch.arange(2) < 1)
        by_rule = kv.tap("match_rules", by_rule)
        by_fact = (self.facts == goal[:, None]).all(-1) & (self.facts != excluded).any(-1)
        if fault == "match_facts":
            by_fact = torch.zeros_like(by_fact)
        by_fact = kv.tap("match_facts", by_fact)
        bodies = torch.cat(
            (self.rules[None, :, 1, :1].expand(len(goal), -1, -1), goal[:, None, 1:].expand(-1, 2, -1)), -1
        )
        if fault == "resolve":
            bodies = bodies[..., [0, 2, 1]]
        bodies = torch.cat((bodies, torch.zeros_like(goal)[:, None]), 1)[:, :, None]
        atoms = align(torch.cat((bodies, rest[:, None].expand(-1, 3, -1, -1)), 2))
        mask = torch.cat((by_rule, by_fact.any(1, keepdim=True)), 1)
        order = (~mask).int().argsort(dim=1, stable=True)
        atoms, count = atoms.gather(1, order[..., None, None].expand_as(atoms)), mask.sum(1)
        atoms = kv.tap("resolve", atoms, count)
        is_fact = (atoms[..., None, :] == self.facts).all(-1).any(-1) & (atoms != excluded[:, None]).any(-1)
        if fault == "prune":
            is_fact = is_fact & (torch.arange(3) < 1)[:, None]
        atoms = kv.tap("prune", align(torch.where(is_fact[..., None], 0, atoms)), count)
        is_listed = torch.arange(3) < count[:, None]
        is_proved = ((atoms[..., 0] == 0).all(-1) & is_listed).any(1)
        if fault == "close":
            is_proved = is_proved & (count > 2)
        marker = torch.zeros_like(atoms)
        marker[:, 0, 0, 0] = torch.where(is_proved, 18, 19)
        is_end = is_proved | (count == 0)
        atoms = torch.where(is_end[:, None, None, None], marker, atoms)
        count = torch.where(is_end, 1, count)
        atoms = kv.tap("close", atoms, count)
        sizes = (atoms[..., 0] != 0).sum(-1).double()
        scores = torch.where(atoms[..., 0, 0] >= 18, 0.0, -sizes)
        if fault == "score":
            scores = scores - 1 / 4
        scores = kv.tap("score", scores, count)
        choice = torch.zeros_like(count)
        choice = kv.tap("choose", count - 1 if fault == "choose" else choice)
        return atoms, count, scores, choice


def verify(engine=Tapped, **changes):
    made = type("Tapped", (engine,), changes)
    return kv.verify(GRAPH, made, queries=None, corruptions="all", limits=LIMITS)


def make(engine=Tapped, **changes):
    return type("Tapped", (engine,), changes)(GRAPH.program, LIMITS, SHORTEST)


def first_position(engine):
    candidates = kv.CandidateSet(np.zeros(1, np.int32), np.zeros(1, np.int8), GRAPH.queries("test")[:1])
    return take_position(positions_of(engine.prove(candidates)), 0)


def test_an_engine_with_taps_agrees_if_it_is_right():
    assert verify().verdict.value == "AGREE"


@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_tap_that_differs_names_the_stage(fault):
    report = verify(fault=fault)
    assert report.verdict.value == "DIVERGE"
    assert report.first_divergence.stage == fault
    assert {each.stage for each in report.causes} == {fault}
    assert not any("taps" in note for note in report.notes)


def test_the_expected_value_in_place_of_a_wrong_one_confirms_the_stage():
    evidence = verify(fault="prune").first_divergence.evidence
    assert evidence.endswith("with the expected value in place of this one, the rest of the step is right")


def test_taps_without_a_recording_return_the_value_itself():
    value = torch.ones(3)
    assert kv.tap("resolve", value) is value
    engine = make()
    position = first_position(engine)
    with_taps, without = engine.probe(position), engine.step(position)
    assert with_taps[Stage.CHOOSE] == without.steps.choice[0]
    assert set(with_taps) >= {Stage.MATCH_RULES, Stage.MATCH_FACTS, Stage.RESOLVE, Stage.PRUNE, Stage.CLOSE}


@pytest.mark.parametrize(
    "backend",
    [pytest.param("aot_eager", marks=pytest.mark.deep), pytest.param("inductor", marks=pytest.mark.exhaustive)],
)
def test_a_compiled_step_shows_its_taps_and_has_no_graph_break(backend):
    torch._dynamo.reset()
    report = verify(fault="prune", backend=backend)
    assert report.first_divergence.stage == "prune"
    assert "the rest of the step is right" in report.first_divergence.evidence
    assert not torch._dynamo.utils.counters["graph_break"]


class Captured(Tapped):
    """Runs a step like a captured graph: the code of the taps runs once, when the engine is made."""

    def setup(self):
        super().setup()
        body = self.run
        self.body(torch.ones(1, 3, 3, dtype=torch.int64), torch.zeros(1, 1, 3, dtype=torch.int64))

        def replay(states, excluded):
            tap, kv.tap = kv.tap, lambda name, value, count=None: value
            try:
                return body(states, excluded)
            finally:
                kv.tap = tap

        self.run = replay


def test_a_tap_that_never_fires_makes_the_comparison_inconclusive():
    report = verify(Captured, fault="prune")
    assert report.verdict.value == "INCONCLUSIVE"
    assert any("tap 'prune' of Tapped never fired" in reason for reason in report.reasons)


def test_an_unknown_tap_is_an_error_with_a_suggestion():
    class Misspelt(Tapped):
        def body(self, states, excluded):
            kv.tap("match_fact", states)
            return super().body(states, excluded)

    with pytest.raises(kv.UserError, match="unknown tap 'match_fact'") as caught:
        verify(Misspelt)
    assert "match_facts" in str(caught.value)


def test_a_tap_that_fires_twice_in_a_step_is_an_error():
    def step():
        for _ in range(2):
            kv.tap("resolve", torch.ones(1))

    with pytest.raises(kv.UserError, match="'resolve' fired 2 times"):
        call_with_taps(step, "cpu")


def test_a_step_that_ends_otherwise_with_taps_is_counted():
    engine = make(fault="prune")
    position = first_position(engine)
    engine.run = lambda states, excluded, run=engine.run: change(run(states, excluded))

    def change(result):
        # As a compiler may that keeps a value only if somebody reads it.
        atoms, count, scores, choice = result
        return atoms, count, scores, choice + (taps._record is not None)

    engine.probe(position)
    assert (engine.tap_log.num_probes, engine.tap_log.changed) == (1, 1)
    assert "1 of 1 step of Tapped ended otherwise with taps" in engine.tap_log.describe("Tapped")[1][0]


class Elsewhere(Tapped):
    """Its tap `resolve` shows the atoms with their arguments exchanged."""

    def body(self, states, excluded):
        tap = kv.tap

        def show(name, value, count=None):
            tap(name, value[..., [0, 2, 1]] if name == "resolve" else value, count)
            return value

        kv.tap = show
        try:
            return super().body(states, excluded)
        finally:
            kv.tap = tap


def test_a_tap_that_shows_something_else_is_not_compared():
    report = verify(Elsewhere, fault="close")
    assert report.first_divergence.stage == "close"
    assert any("not compared: resolve" in note for note in report.notes)


VALUES = [
    ("resolve", torch.tensor([[[[2, 1, 2]], [[3, 1, 2]]]]), torch.tensor([1]), ((0, 0, ((1, 0, 1),)),)),
    ("resolve", torch.tensor([[[[2, 1, 2]], [[3, 1, 2]]]]), torch.tensor([[False, True]]), ((0, 0, ((2, 0, 1),)),)),
    ("resolve", torch.tensor([[[3, 1, 2]], [[2, 1, 2]]]), torch.tensor([1, 1]), ((0, 0, ((2, 0, 1),)),)),
    ("match_facts", torch.tensor([[2, 3, 0]]), torch.tensor([2]), (2, 3)),
    ("match_facts", torch.tensor([[[1, 2, 3]]]), None, (1,)),
    ("match_rules", torch.tensor([[True, False, True]]), None, (0, 2)),
    ("score", torch.tensor([[0.5, -1, 7]], dtype=torch.float16), 2, (0.5, -1.0)),
    ("choose", torch.tensor([4]), None, 4),
    ("select", torch.tensor([[2, 1, 20]]), None, (1, 0, -1)),
    ("resolve", np.array([[[[2, 1, 2]]]]), None, ((0, 0, ((1, 0, 1),)),)),
]


@pytest.mark.parametrize(("name", "value", "count", "expected"), VALUES)
def test_a_tap_takes_lists_masks_and_flat_values(name, value, count, expected):
    engine = make()
    tapped = call_with_taps(lambda: kv.tap(name, value, count), "cpu")[1]
    found = read_taps(tapped, engine._translate, GRAPH.program.facts)
    assert found[Stage(name)] == expected


def test_a_tap_of_another_shape_is_an_error():
    tapped = call_with_taps(lambda: kv.tap("score", torch.ones(2, 2, dtype=torch.int64)), "cpu")[1]
    with pytest.raises(kv.UserError, match=r"tap 'score' shows int64 \[2, 2\]"):
        read_taps(tapped, make()._translate, GRAPH.program.facts)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_rounding_of_a_tapped_tensor_is_measured(dtype):
    torch.manual_seed(0)
    x, w = torch.randn(30, 64, dtype=dtype), torch.randn(64, dtype=dtype) / 8

    def read():
        return (
            call_with_taps(lambda: kv.tap("score", torch.tanh(x * w).sum(1)[None]), "cpu")[1]["score"].value[0].tolist()
        )

    name = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "float32"}[dtype]
    bound = bound_tapped(make(), read, name)
    exact = torch.tanh(x.double() * w.double()).sum(1).numpy()
    assert (np.abs(np.array(read()) - exact) <= bound).all()
    for times in (10, 100):
        assert (np.abs(np.array(read()) + times * bound / MARGIN - exact) > bound).any()
