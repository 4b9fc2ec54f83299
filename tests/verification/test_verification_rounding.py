"""The rounding of other people's scores is measured, stated, and never confused with a fault."""

import re
from typing import ClassVar

import numpy as np
import pytest
from textbook import Textbook

import kgverify as kv

WIDTH = 16
SMALL = {"queries": 1, "corruptions": 2}


class Net(Textbook):
    """Scores by a network of float32 in NumPy, whose sums are added in one order."""

    stride = 1

    def __init__(self, program, limits, policy):
        super().__init__(program, limits, policy)
        random = np.random.default_rng(5)
        num = len(program.symbols.predicates) + len(program.symbols.constants) + 1
        self.table = random.normal(size=(num, WIDTH)).astype(np.float32)
        self.first = len(program.symbols.predicates)

    def embed(self, atoms):
        rows = [self.table[[p, *(self.first + t if t >= 0 else -1 for t in terms)]].prod(0) for p, *terms in atoms]
        return np.sum(rows, 0, dtype=np.float32)

    def score(self, goal, resolvents):
        before = self.embed(goal)
        return [float(self.add(before * self.embed(each.atoms))) for each in resolvents]

    def add(self, products):
        total = np.float32(0)
        for product in products[:: self.stride]:
            total = np.float32(total + product)
        return total


class Backwards(Net):
    """The same network, added in the other order: right."""

    stride = -1


class Half(Net):
    def add(self, products):
        return np.float16(super().add(products))


class Jitter(Net):
    """Adds in another order in every call."""

    random = np.random.default_rng()

    def add(self, products):
        self.stride = int(self.random.choice([-1, 1]))
        return super().add(products)


class Guesses(Net):
    """Adds random numbers."""

    random = np.random.default_rng()

    def score(self, goal, resolvents):
        return [each + self.random.normal() for each in super().score(goal, resolvents)]


class OtherRow(Net):
    """Gives each derivation the scores of the next one in the batch."""

    def take_steps(self, queries, visited):
        taken = list(super().take_steps(queries, visited))
        scores = [[each.score for each in step.resolvents] for step in taken]
        moved = []
        for step, own, other in zip(taken, scores, scores[1:] + scores[:1], strict=True):
            given = (other + [min(other) - 1] * len(own))[: len(own)]
            rescored = [each._replace(score=score) for each, score in zip(step.resolvents, given, strict=True)]
            moved.append(step._replace(resolvents=rescored))
        return moved


def offset_by(size):
    """Return an engine that adds a number to the first score of some steps."""

    class Offset(Backwards):
        def score(self, goal, resolvents):
            scores = super().score(goal, resolvents)
            if scores and len(resolvents) % 2:
                scores[0] += size
            return scores

    return Offset


def texts_of(report):
    return [*report.notes, *report.reasons, *(each.evidence for each in report.divergences)]


class Kept(Backwards):
    """Keeps each engine that was made, with a copy of its weights."""

    made: ClassVar[list] = []

    def __init__(self, program, limits, policy):
        super().__init__(program, limits, policy)
        self.made.append((self, self.table.copy()))


@pytest.fixture(scope="module")
def right():
    return kv.verify("countries", Kept, reference=Net, **SMALL)


def test_the_weights_of_an_engine_are_its_own_again_after_its_rounding_was_measured(right):
    assert "measured" in right.rounding.evidence[0]
    assert Kept.made
    assert all(np.array_equal(engine.table, table) for engine, table in Kept.made)


def test_another_order_of_a_sum_agrees_and_the_rounding_is_stated(right):
    assert right.verdict is kv.Verdict.AGREE, right
    rounding = right.rounding
    assert rounding.num_differing > 0
    assert 0 < rounding.largest < rounding.bound < 1e-3
    assert rounding.float_type == "float32"
    assert 1 < rounding.ulps < 5000
    assert all("measured" in each for each in rounding.evidence)
    assert any("differ within the bound" in note and "ulps of float32" in note for note in right.notes)
    assert right.environment.expected.name == "Net"


def test_equal_bits_have_no_rounding():
    report = kv.verify("countries", Net, reference=Net, **SMALL)
    assert (report.verdict, report.level, report.rounding.bound) == (kv.Verdict.AGREE, None, 0.0)
    assert report.determinism.actual_within == "to the bit"


class Double(Net):
    """The same network in the float type of its table, which is float64."""

    type = np.float64

    def __init__(self, program, limits, policy):
        super().__init__(program, limits, policy)
        self.table = self.table.astype(self.type)

    def embed(self, atoms):
        rows = [self.table[[p, *(self.first + t if t >= 0 else -1 for t in terms)]].prod(0) for p, *terms in atoms]
        return np.sum(rows, 0)

    def add(self, products):
        return sum(products[:: self.stride], products.dtype.type(0))


class Coarse(Double):
    """Adds a little in float32."""

    type = np.float32

    def add(self, products):
        return super().add(products) + products.dtype.type(1e-5 * (products.dtype == np.float32))


class CoarseBackwards(Coarse):
    stride = -1


def test_a_float32_engine_may_have_the_errors_of_its_type_beside_a_float64_one():
    report = kv.verify("countries", Backwards, reference=Double, **SMALL)
    assert report.verdict is kv.Verdict.AGREE, report
    assert report.rounding.num_differing > 0


def test_the_error_of_an_engine_against_its_own_float64_scores_does_not_widen_its_bound():
    report = kv.verify("countries", CoarseBackwards, reference=Coarse, **SMALL)
    _, actual = report.rounding.evidence
    bound, off = (float(re.search(words, actual)[1]) for words in (r": (\S+) nats", r"scores differ by ([^;,]+)"))
    assert off < bound < 7 * off


@pytest.mark.deep
def test_a_fault_beyond_the_bound_is_a_fault_of_scores(right):
    report = kv.verify("countries", offset_by(10 * right.rounding.bound), reference=Net, **SMALL)
    assert report.verdict is kv.Verdict.DIVERGE
    assert report.first_divergence.stage == "score"
    assert not any("other slots" in text for text in texts_of(report))


@pytest.mark.deep
def test_the_way_out_is_named_with_what_it_hides(right):
    fault = offset_by(3 * right.rounding.bound)
    report = kv.verify("countries", fault, reference=Net, **SMALL)
    (note,) = [note for note in report.notes if "accepted_error" in note]
    assert "hide every fault that changes scores by less than" in note
    value = float(note.partition("accepted_error ")[2].split()[0])
    accepting = kv.verify("countries", fault, reference=Net, **SMALL, equality=kv.Equality(score_error=value))
    assert accepting.verdict is kv.Verdict.AGREE
    assert any("the user accepts" in note for note in accepting.notes)


@pytest.mark.deep
def test_a_coarser_float_type_is_named_and_accepted_only_if_it_is_declared():
    report = kv.verify("countries", Half, reference=Net, **SMALL)
    assert report.verdict is kv.Verdict.DIVERGE
    assert "the actual scores are the expected ones rounded to fp16, up or down" in report.first_divergence.evidence
    assert any("accepted_error fp16 accepts" in note for note in report.notes)
    accepting = kv.verify("countries", Half, reference=Net, **SMALL, equality=kv.Equality(score_error="float16"))
    assert accepting.verdict is kv.Verdict.AGREE
    assert any("the user accepts errors of fp16" in note for note in accepting.notes)


def test_an_engine_repeats_itself_within_the_bound():
    report = kv.verify("countries", Jitter, reference=Net, **SMALL)
    assert report.verdict is kv.Verdict.AGREE
    assert report.determinism.expected_within == "to the bit"
    assert report.determinism.actual_within.startswith("within ")
    assert "the actual one within" in " ".join(str(report).split())


@pytest.mark.parametrize("reference", [Net, pytest.param(Guesses, marks=pytest.mark.deep)])
def test_an_engine_that_chooses_otherwise_in_its_second_run_is_inconclusive(reference):
    report = kv.verify("countries", Guesses, reference=reference, **SMALL)
    assert report.verdict is kv.Verdict.INCONCLUSIVE
    assert any("not deterministic" in reason and "from step" in reason for reason in report.reasons)
    # Where both are random, a change of one is no measure of the rounding.
    assert reference is Net or not any("8 times the change" in each for each in report.rounding.evidence)


@pytest.mark.deep
def test_scores_of_another_row_are_named():
    report = kv.verify("countries", OtherRow, reference=Net, **SMALL)
    assert (report.verdict, report.first_divergence.stage) == (kv.Verdict.DIVERGE, "recycle")
    assert report.causes[0].situation == "scores of another row"
    assert "are those expected of another candidate at the same step" in report.first_divergence.evidence


def test_two_recorded_traces_have_a_weaker_bound_from_their_float_type(tmp_path, right):
    paths = []
    for engine in (Net, Backwards, offset_by(1000 * right.rounding.bound)):
        paths.append(tmp_path / f"{engine.__name__}.h5")
        kv.record("countries", paths[-1], engine, **SMALL)
    report = kv.compare(paths[0], paths[1])
    assert report.verdict is kv.Verdict.AGREE, report
    assert all("512 roundings of float32" in each for each in report.rounding.evidence)
    assert kv.compare(paths[0], paths[2]).verdict is kv.Verdict.DIVERGE


@pytest.mark.deep
def test_torch_code_is_measured_wherever_its_weights_are():
    torch = pytest.importorskip("torch")
    table = torch.randn(400, WIDTH, generator=torch.Generator().manual_seed(1))

    class InTorch(Net):
        def embed(self, atoms):
            rows = torch.tensor([[p, *(self.first + t if t >= 0 else -1 for t in terms)] for p, *terms in atoms])
            return table[rows.reshape(-1, 3)].prod(1).sum(0)

        def add(self, products):
            return products.sum().item()

    class Reordered(InTorch):
        def add(self, products):
            return sum(products.flip(0).unbind()).item()

    report = kv.verify("countries", Reordered, reference=InTorch, **SMALL)
    assert report.verdict is kv.Verdict.AGREE, report
    assert report.rounding.num_differing > 0
    assert all("random errors in each operation" in each and "in float64" in each for each in report.rounding.evidence)


@pytest.mark.deep
def test_a_mask_of_large_numbers_does_not_widen_the_bound():
    torch = pytest.importorskip("torch")

    class Masked(Net):
        def add(self, products):
            mask = torch.ones(WIDTH + 2)
            mask[WIDTH:] = 0.0
            padded = torch.cat([torch.as_tensor(products), torch.zeros(2)])
            return torch.logsumexp(padded * self.stride + (1.0 - mask) * -1e9, 0).item()

    class Hotter(Masked):
        def add(self, products):
            return super().add(products) / 1.1

    report = kv.verify("countries", Hotter, reference=Masked, **SMALL)
    assert (report.verdict, report.first_divergence.stage) == (kv.Verdict.DIVERGE, "score")
    assert report.rounding.bound < 1e-2


class ByBatch(Net):
    """Adds in another order in batches of more than 3 goals, as a matrix product may: right."""

    fault = 0.0

    def take_steps(self, queries, visited):
        self.stride, self.offset = (-1, self.fault) if len(queries) > 3 else (1, 0.0)
        return super().take_steps(queries, visited)

    def add(self, products):
        return super().add(products) + np.float32(self.offset)


class WrongByBatch(ByBatch):
    """Gives other scores in batches of more than 3 goals."""

    fault = 1e-3


THREE_QUERIES = kv.parse_problem(
    "p(a, b).\np(b, c).\nq(X, Y) :- p(X, Y).\nq(X, Y) :- p(X, Z), q(Z, Y).\n?- q(a, c).\n?- q(b, c).\n"
    "?- q(a, b).\nlimits: max_depth 4, max_atoms 4, max_resolvents 8, exclude_query yes\n"
)
CALLS = {
    "assert_agrees": lambda engine: kv.assert_agrees(engine, THREE_QUERIES, reference=engine, lockstep=False),
    "lockstep": lambda engine: kv.assert_agrees(engine, THREE_QUERIES, reference=engine),
    "laws": lambda engine: kv.assert_agrees(engine, THREE_QUERIES, reference=engine, lockstep=False, laws=["twice"]),
    "check_engine": lambda engine: kv.check_engine(
        engine, reference=engine, problems=[THREE_QUERIES], minimum={}
    ).raise_if_broken(),
    "assert_equivalent": lambda engine: kv.assert_equivalent(engine, reference=engine, examples=3, minimum={}),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_an_engine_whose_last_bits_depend_on_its_batch_agrees_with_itself(call):
    call(ByBatch)


@pytest.mark.parametrize("name", ["lockstep", "laws"])
def test_an_error_of_a_score_in_batches_of_some_sizes_is_found(name):
    with pytest.raises(kv.NotConforming, match="score"):
        CALLS[name](WrongByBatch)


def test_a_list_that_differs_behind_a_wrong_score_has_no_way_out():
    class Shifted(Textbook):
        def score(self, goal, resolvents):
            return [each - 0.25 for each in super().score(goal, resolvents)]

        def take_steps(self, queries, visited):
            steps = super().take_steps(queries, visited)
            return [
                step._replace(resolvents=step.resolvents[:-1]) if len(goals) == 2 and len(step.resolvents) > 1 else step
                for step, goals in zip(steps, visited, strict=True)
            ]

    report = kv.verify("countries", Shifted, **SMALL)
    assert report.first_divergence.stage == "score"
    assert not any("accepted_error" in note for note in report.notes)
