"""Laws that hold of a prover by itself: they judge an engine without another one that is right."""
