"""The evidence that two recorded traces are."""
