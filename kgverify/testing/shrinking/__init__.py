"""Reduce a failing problem to a minimal one that fails in the same way."""
