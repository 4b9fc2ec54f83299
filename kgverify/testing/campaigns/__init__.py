"""Fuzzing campaigns, their corpus and their results."""
