"""Reproducers: minimal failing problems as readable text files and tests."""
