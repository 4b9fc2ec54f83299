"""Fuzzing: generated problems that run on two provers, and what is done with those on which they differ.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
