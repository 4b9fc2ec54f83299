"""Verification: run two engines on the same candidates, record and compare them, and replay the steps that differ.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
