"""The `two_tower` policy as one kernel: atoms in, scores out."""
