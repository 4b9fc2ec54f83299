"""Device, mode, precision, batch size and compiler settings of the evaluator."""
