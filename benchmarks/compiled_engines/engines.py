"""Six families of provers by a stranger: one search, six policies, and variants that differ only in rounding.

`make_engine_class("attention", "reduce-overhead")` returns an engine for `kgverify.verify`. The environment variable
`KGVERIFY_DEVICE` names the device, and `KGVERIFY_ARRAYS` the library of the sixth family's reference: `numpy` or `jax.numpy`.
"""

import os
from functools import cache
from importlib import import_module
from types import FunctionType

import numpy as np
import torch
from policies import Attention, DotProduct, MeanResidual, Normed, Pair, Ragged, score_with_arrays
from search import FRESH, HEAD_FIRST, HEAD_SECOND, Search

import kgverify as kv

DEVICE = os.environ.get("KGVERIFY_DEVICE", "cpu")
ARRAYS = os.environ.get("KGVERIFY_ARRAYS", "numpy")
LIMITS = kv.Limits(max_depth=6, max_atoms=4)
MODES = ("default", "reduce-overhead", "max-autotune")
SMALL_BATCH = 96


class PaddedProver(kv.TensorEngine):
    """A prover whose step is a function of two modules and three tensors.

    variant: `eager`, a mode of `torch.compile`, `cuda-graph`, `small-batch` or `other-order`
    fault:   a `faults.Fault` that changes the modules, the inputs or the outputs; None for a right engine
    calls:   the inputs of each call, if it is a list
    """

    scorer_class = DotProduct
    gives_choice = False
    variant, fault, calls = "eager", None, None

    def setup(self):
        self.device = DEVICE
        if self.variant == "small-batch":
            self.batch_size = SMALL_BATCH
        self.max_atoms, self.max_depth = self.limits.max_atoms, self.limits.max_depth
        symbols = self.program.symbols
        names = sorted(symbols.predicates), sorted(symbols.constants)
        self.encoding = kv.Encoding(
            predicates={name: i + 1 for i, name in enumerate(names[0])},
            constants={name: i + 1 for i, name in enumerate(names[1])},
        )
        sizes = len(names[0]), len(names[1])
        rules = [self._read_rule(rule, sizes[1]) for rule in self.program.rules]
        self.search = Search(self.encode(self.program.facts), rules, *sizes)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(17)
            self.scorer = self.scorer_class(*sizes)
        if self.fault is not None:
            self.fault.change_modules(self.search, self.scorer)
        self.search.to(self.device).requires_grad_(False)
        self.scorer.to(self.device).requires_grad_(False)
        self._captured = None

    def _read_rule(self, rule, num_constants):
        head, *body = self.encode([rule.clause_head, *rule.body]).tolist()
        others = {term for atom in body for term in atom[1:]} - set(head[1:])
        if (
            len(body) > 2
            or head[1] == head[2]
            or len(others) > 1
            or min(min(atom[1:]) for atom in body) <= num_constants
        ):
            raise NotImplementedError("a rule other than h(X, Y) <- b(..), c(..) with at most one further variable")
        terms = {head[1]: HEAD_FIRST, head[2]: HEAD_SECOND}
        return head[0], [[p, terms.get(a, FRESH), terms.get(b, FRESH)] for p, a, b in body]

    def expand(self, states, next_variable, excluded):
        if self.calls is not None:
            self.calls.append((states.clone(), next_variable.clone(), excluded.clone()))
        excluded = excluded[:, 0]
        if self.fault is not None:
            excluded = self.fault.change_excluded(excluded)
        with torch.no_grad():
            successors, counts, scores = self.run_step(states, next_variable, excluded)
            out = {"successors": successors, "counts": counts, "next_variable": next_variable + 1, "scores": scores}
            if self.fault is not None:
                out = self.fault.change_outputs(self, out)
            if self.gives_choice:
                out["choice"] = choose(out, self.fault)
        return out

    def run_step(self, *inputs):
        """Return successors, counts and scores in the way of the variant."""
        modules = self.search, self.scorer
        if self.variant == "cuda-graph":
            return self._replay_graph(inputs)
        if self.variant == "other-order":
            generator = torch.Generator().manual_seed(len(inputs[0]))
            order = torch.randperm(len(inputs[0]), generator=generator).to(self.device)
            outputs = step(*modules, *(each[order] for each in inputs))
            return tuple(each[order.argsort()] for each in outputs)
        if self.variant not in MODES:
            return step(*modules, *inputs)
        num = len(inputs[0])
        if self.variant == "max-autotune":
            # Tuning takes long, so that every call has one shape.
            inputs = [pad_rows(each, self.batch_size) for each in inputs]
        if self.variant != "default":
            torch.compiler.cudagraph_mark_step_begin()
        outputs = compile_step(self.scorer_class, self.variant)(*modules, *inputs)
        # The next replay of a CUDA graph overwrites its outputs.
        return tuple(each[:num].clone() for each in outputs)

    def _replay_graph(self, inputs):
        num = len(inputs[0])
        if self._captured is None:
            self._captured = self._capture(inputs)
        graph, buffers, outputs = self._captured
        for buffer, values in zip(buffers, inputs, strict=True):
            buffer[num:] = 0
            buffer[:num].copy_(values)
        graph.replay()
        return tuple(each[:num].clone() for each in outputs)

    def _capture(self, inputs):
        buffers = [pad_rows(each, self.batch_size).clone() for each in inputs]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                step(self.search, self.scorer, *buffers)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = step(self.search, self.scorer, *buffers)
        return graph, buffers, outputs


def step(search, scorer, states, next_variable, excluded):
    """Return the successors of a batch, their counts and their scores."""
    successors, counts = search(states, next_variable, excluded)
    return successors, counts, scorer(states, successors, counts)


@cache
def compile_step(scorer_class, mode):
    """Return the step of a family, compiled. Engines of a process share it, as those of a module do."""
    # torch keeps compiled code, and what it learnt about shapes, by the name of the code.
    code = step.__code__.replace(co_name=f"step_{scorer_class.__name__}_{mode.replace('-', '_')}")
    return torch.compile(FunctionType(code, step.__globals__), mode=mode)


def choose(out, fault):
    """Return the first of the highest scores of each list; -1 for an empty one."""
    counts, scores = out["counts"], out["scores"]
    sizes = counts if fault is None else fault.change_counts(counts)
    is_listed = torch.arange(scores.shape[1], device=scores.device) < sizes[:, None]
    choice = scores.masked_fill(~is_listed, -torch.inf).argmax(-1)
    return torch.where(counts > 0, choice, -1)


def pad_rows(values, size):
    """Return the rows followed by zeros, `size` rows in all."""
    return torch.cat([values, values.new_zeros(size - len(values), *values.shape[1:])])


class AttentionProver(PaddedProver):
    """The family `attention`, which chooses by itself."""

    scorer_class, gives_choice = Attention, True


class RaggedProver(PaddedProver):
    """The family `ragged`, which chooses by itself."""

    scorer_class, gives_choice = Ragged, True


class ArrayProver(PaddedProver):
    """The reference of the family `pair`: the policy in NumPy, or in JAX, on the CPU in float32."""

    scorer_class, arrays = Pair, "numpy"

    def setup(self):
        super().setup()
        self.device = "cpu"
        self.search.cpu()
        self.library = import_module(ARRAYS)
        self.weights = {
            name: self.library.asarray(value.cpu().numpy()) for name, value in self.scorer.state_dict().items()
        }
        del self.scorer

    def encode(self, atoms):
        return torch.as_tensor(super().encode(atoms))

    def expand(self, states, next_variable, excluded):
        inputs = (torch.as_tensor(np.asarray(each)) for each in (states, next_variable, excluded[:, 0]))
        successors, counts = (each.numpy() for each in self.search(*inputs))
        scores = np.asarray(score_with_arrays(self.library, self.weights, states, successors, counts))
        return {"successors": successors, "counts": counts, "next_variable": next_variable + 1, "scores": scores}


FAMILIES = {
    "dot": PaddedProver,
    "mean": type("MeanProver", (PaddedProver,), {"scorer_class": MeanResidual}),
    "attention": AttentionProver,
    "norm": type("NormProver", (PaddedProver,), {"scorer_class": Normed}),
    "ragged": RaggedProver,
    "pair": type("PairProver", (PaddedProver,), {"scorer_class": Pair}),
}
REFERENCES = {"pair": ArrayProver}
"""The references that are not the eager variant of their family."""


def list_variants(family, device):
    """Return the variants of a family to compare with its reference; some need a GPU, or take minutes without one."""
    variants = ["default", "reduce-overhead", "max-autotune", "cuda-graph", "small-batch", "other-order"]
    if device == "cpu":
        variants = ["default", "small-batch", "other-order"]
    return [*(["eager"] if family in REFERENCES else []), *variants]


def make_engine_class(family, variant="eager", fault=None):
    """Return the engine of a family, in a variant, with a fault or none. Its name says which."""
    name = "_".join([family, variant, *([fault.name] if fault else [])]).replace("-", "_")
    return type(name, (FAMILIES[family],), {"variant": variant, "fault": fault, "__module__": __name__})


def make_reference_class(family):
    """Return the engine with which a family is compared."""
    return REFERENCES.get(family) or make_engine_class(family)
