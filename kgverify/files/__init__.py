"""Reading and writing files: one way in, one way out.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
