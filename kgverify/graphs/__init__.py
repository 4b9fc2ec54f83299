"""Knowledge graphs: the readers of their files, and the graphs that come with kgverify.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
