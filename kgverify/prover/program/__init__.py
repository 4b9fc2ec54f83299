"""The program as tensors, and its least model."""
