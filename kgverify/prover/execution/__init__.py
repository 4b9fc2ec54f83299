"""The layer below the evaluator: device, compilation and its caches, kernel launches, copies to the host, processes."""
