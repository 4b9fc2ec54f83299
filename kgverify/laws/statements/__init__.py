"""The laws, grouped by subject."""
