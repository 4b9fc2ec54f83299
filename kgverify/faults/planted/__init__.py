"""The code that plants each fault in the compiled evaluator."""
