"""Fuzzing: generated problems run on two provers, many of them as one run, and what came of it."""
