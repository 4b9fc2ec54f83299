"""The plain evaluator: the plain step as an engine, which needs neither torch nor a compiler.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
