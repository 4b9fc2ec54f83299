"""Large evaluations: many candidates ranked without recording their steps.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
