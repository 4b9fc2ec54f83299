"""The readers of the formats in which triples are kept."""
