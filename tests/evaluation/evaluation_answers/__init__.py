"""Small evaluations and least models whose results plain code computes: they judge `evaluate` before it reports anything."""
