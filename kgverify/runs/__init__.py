"""Runs and pipelines: which candidates are proved, by whom, with how many processes."""
