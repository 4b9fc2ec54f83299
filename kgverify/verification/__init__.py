"""Verification: run two engines on the same candidates, record and compare their steps, and replay steps that differ.

Internal: it may change without notice. Users import from `kgverify` itself.
"""
