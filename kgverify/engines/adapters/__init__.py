"""Base classes that turn a user's functions into an engine."""
