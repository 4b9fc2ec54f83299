"""Check, repair, convert and join recorded traces."""
