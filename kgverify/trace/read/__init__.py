"""Read traces."""
