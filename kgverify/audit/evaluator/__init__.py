"""Audits of the compiled evaluator itself."""
