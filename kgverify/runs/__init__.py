"""Runs and pipelines: the candidates to prove, the engine that proves them, and the processes that it uses.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
