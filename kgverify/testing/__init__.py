"""Fuzzing: generated problems run on two provers, and problems on which the provers differ are shrunk and saved.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
