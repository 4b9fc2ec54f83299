"""Readers for the file formats of triples, and the options of a user about files."""
