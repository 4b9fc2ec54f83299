"""The stages of a step as pure functions on tensors."""
