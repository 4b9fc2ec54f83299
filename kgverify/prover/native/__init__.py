"""The native evaluator: C++ on the cores of the CPU, compiled on its first use."""
