"""Knowledge graphs: readers for their files, and the graphs that come with kgverify.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
