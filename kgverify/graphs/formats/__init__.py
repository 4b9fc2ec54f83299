"""The readers of the formats in which triples are kept, and what a user says about files."""
