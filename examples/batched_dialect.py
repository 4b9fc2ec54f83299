"""The dialect of a batched engine. It applies three filters itself, and the environment that chooses its actions the others."""

from kgreference import (
    Dialect,
    Filter,
    Limits,
    Memory,
    Program,
    Shortest,
    Stopping,
    Ties,
    Unification,
    Variable,
    derive,
)

batched = Dialect(
    unification=Unification.ONE_PASS,
    filters=(Filter.PRUNE, Filter.CLOSE, Filter.MAX_RESOLVENTS, Filter.REVISIT, Filter.MAX_ATOMS),
    memory=Memory.SET,
    exempts_terminal=True,
    stopping=Stopping.WHERE_NO_TERMINAL,
    ties=Ties.RANDOM,
)
x, y = Variable("X"), Variable("Y")
program = Program.from_names(
    facts=[("likes", "ann", "ann")],
    rules=[(("same", x, x), [("likes", x, x)]), (("near", x, y), [("near", y, x)])],
    queries=[("same", "ann", y), ("near", "ann", "bob")],
)
limits, policy = Limits(), Shortest()
same, near = program.encode(("same", "ann", y)), program.encode(("near", "ann", "bob"))
assert derive(program, limits, policy, same).outcome.name == "PROVED"
assert derive(program, limits, policy, same, batched).outcome.name == "FAILED"
last = derive(program, limits, policy, near, batched).steps[-1]
assert [resolvent.kind.name for resolvent in last.after_limit] == ["STOP"]
