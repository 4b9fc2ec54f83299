"""Weights that come with kgverify, one file for each embedded graph."""
