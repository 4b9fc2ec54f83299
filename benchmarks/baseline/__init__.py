"""The published design of a compiled evaluator, as a baseline: padded, int64, one host synchronisation a step.

Written from its description, not from its code. What it has, and `kgverify.prover` has not:

- resolvents padded to int64 `[slots, max_resolvents, max_atoms, 3]`;
- the whole segment of the selected predicate gathered and tried for every slot, with no index on arguments;
- the policy on all `max_resolvents + 1` rows of every slot, the goal's among them, padding or not;
- slot i takes the candidates i, i + N, i + 2N, ...: a pool `[ceil(C / N), N]`, without any balance between slots;
- a look from the host at every step, which decides whether the engine is called;
- two captured graphs, the engine's and the policy's, whose outputs are copied into buffers.

Published, resolvents were computed for the query alone and chosen from again at every later step (`recomputes=False`). With
`recomputes=True` it takes the derivations of docs/semantics.md: the same outcomes and log-probabilities as kgverify's own
engines, on the same weights and candidates. To that end the segment is resolved in full, and the first `max_resolvents` of what
survives are kept, instead of the first that match; a TRUE anywhere in the segment wins.
"""
