"""The vocabulary of a proof step: atoms, clauses, programs, stages, outcomes, limits."""
