"""Audits of the properties that a compiled step can lose."""
