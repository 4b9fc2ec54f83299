"""Weights that come with kgverify, one file for an embedded graph."""
