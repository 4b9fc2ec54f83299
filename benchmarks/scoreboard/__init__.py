"""The scoreboard: how well faults are found, measured against ground truth that no comparison of traces takes part in."""
