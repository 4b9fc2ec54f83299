"""What recorded steps imply: the clauses that made resolvents, the stage of a difference, and when it occurs."""
