"""What people and machines read of a comparison; rendering needs no engine.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
