"""The compiled evaluator: batched, fixed shapes, one pure function per stage, eager or `torch.compile`."""

from kgverify.errors import find_missing_dependency

try:
    import torch as _torch  # noqa: F401  the error below names the extra that brings it
except ImportError as error:
    raise find_missing_dependency(error) or error from error
