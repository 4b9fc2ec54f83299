"""Reading and writing files, with one way in and one way out.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
