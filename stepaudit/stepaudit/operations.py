"""A mode of torch that meets each operation of a call."""

from typing import Any

from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode


class OperationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context in which `meet(func, args, kwargs)` runs each operation. Control flow runs by `run_unseen`.

    num_operations: the operations and control flows that ran
    """

    meet: Any
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_operations = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation or a control flow."""
        self.num_operations += 1
        return (self.meet if isinstance(func, OpOverload) else self.run_unseen)(func, args, kwargs or {})

    def run_unseen(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation or a control flow as it is."""
        return func(*args, **kwargs)

    def shadow_of(self, leaf: Any) -> Any:
        """Return the value that stands for a leaf after the call."""
        return leaf
