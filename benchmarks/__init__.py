"""Measurements of what the pages claim: `python -m benchmarks` lists them."""
