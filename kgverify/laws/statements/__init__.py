"""The laws themselves, grouped by what they are about."""
