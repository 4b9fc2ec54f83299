"""Equality up to what the user declares: names of variables, the order of resolvents, repeated resolvents."""
