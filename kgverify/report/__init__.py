"""Reports of a comparison, for people and programs; rendering needs no engine."""
