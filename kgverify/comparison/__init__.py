"""The comparison of two traces: verdict, first divergences, their stages and their causes.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
