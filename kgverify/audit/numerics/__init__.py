"""Audits of determinism and precision."""
