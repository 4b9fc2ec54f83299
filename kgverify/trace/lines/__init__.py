"""Traces as text, one JSON object on each line, from provers in any language."""
