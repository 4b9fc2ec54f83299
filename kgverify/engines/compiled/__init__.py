"""The compiled evaluator: batched, fixed shapes, one pure function per stage, eager or `torch.compile`."""
