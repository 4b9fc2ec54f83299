"""Render a report for each medium."""
