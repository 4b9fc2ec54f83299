"""Environments: the trajectories of two vectorised environments, driven by the same actions, recorded and compared."""
