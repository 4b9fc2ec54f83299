"""Checks of two recorded traces as evidence."""
