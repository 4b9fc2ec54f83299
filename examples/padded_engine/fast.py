"""The batched prover as an engine: its encoding, and its step."""

from typing import ClassVar

from prover import PaddedProver

import kgverify as kv


class Fast(kv.TensorEngine):
    """The batched prover on padded tensors; its environment remembers visited goals as sets of atoms."""

    memory = "sets"
    make: ClassVar[type[PaddedProver]] = PaddedProver

    def setup(self):
        """Give the program to the prover, in its own numbers."""
        predicates, constants = self.program.symbols.predicates, self.program.symbols.constants
        numbers = {"first_variable": len(constants) + 1, "true": len(predicates) + 1, "false": len(predicates) + 2}
        self.encoding = kv.Encoding(**numbers)
        rules = [self.encode([rule.clause_head, *rule.body]) for rule in self.program.rules]
        self.prover = self.make(self.encode(self.program.facts), rules, cap=self.limits.max_resolvents, **numbers)

    def expand(self, states, next_variable, excluded):
        """Take a step."""
        return self.prover.step(states, next_variable, excluded)
