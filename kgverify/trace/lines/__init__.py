"""Traces as text, one JSON object per line, from provers in any language."""
