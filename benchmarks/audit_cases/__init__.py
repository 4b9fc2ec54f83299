"""Steps with which the audit of a step is scored: miscompiles, correct steps, and steps that lose a property."""
