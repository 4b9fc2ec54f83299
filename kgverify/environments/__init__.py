"""Internal: trajectories of two vectorised environments, which are driven by the same actions, recorded and compared."""
