"""Reports of a comparison, for people and programs; rendering needs no engine.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
