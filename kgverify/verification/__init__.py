"""Verification: run two engines on the same candidates, record and compare them, and replay the steps that differ."""
