"""Runs and pipelines: the candidates to prove, the engine that proves them, and the processes it uses."""
