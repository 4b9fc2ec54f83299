"""Other arithmetic for an engine's own torch code: with random rounding errors, or in float64.

Meanwhile compiled functions run eagerly, so nothing is compiled. A captured CUDA graph is replayed unchanged.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_MOVES: Final = """
abs alias amax amin arange argmax argsort as_strided bucketize cat ceil clamp clone constant_pad_nd copy_ detach embedding eq
expand fill flip floor full full_like fmod frac gather ge gt index index_select isfinite isinf isnan le lift_fresh lt
masked_fill max maximum min minimum ne neg new_full new_zeros nonzero one_hot ones ones_like permute relu remainder repeat
reshape roll round scalar_tensor searchsorted select sgn sign signbit slice sort split squeeze stack t topk transpose trunc
unsqueeze view where zeros zeros_like
"""
_EXACT: Final = frozenset(_MOVES.split())
"""Operations that move or compare numbers without rounding."""


class _Perturbed(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not annotate its subclass hook
    """Puts a random relative error of at most `unit` into every operand and result of an operation that can round."""

    def __init__(self, unit: float, short: float, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._unit, self._short, self._seed = unit, short, seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        is_view = any(each.alias_info is not None for each in schema.returns) and not schema.is_mutable
        if is_view or func.overloadpacket.__name__ in _EXACT:
            return func(*args, **kwargs)
        if schema.is_mutable:
            # An operand that the operation writes keeps its identity.
            named = [each.name for each in schema.arguments if each.alias_info is not None]
            args = [
                each if formal.name in named else self._disturb(each)
                for each, formal in zip(args, schema.arguments, strict=False)
            ]
            return func(*args, **kwargs)
        return self._disturb(func(*self._disturb(args), **kwargs))

    def _disturb(self, values: Any) -> Any:
        return tree_map(self._disturb_one, values)

    def _disturb_one(self, value: Any) -> Any:
        if not self._unit or not _is_float(value) or not value.numel():
            return value
        unit = self._short if value.dtype in (torch.float16, torch.bfloat16) else self._unit
        generator = self._generators.get(value.device)
        if generator is None:
            generator = self._generators[value.device] = torch.Generator(value.device).manual_seed(self._seed)
        # Twice the unit: a number changes by at least one unit in the last place, or not at all.
        noise = torch.rand(value.shape, generator=generator, device=value.device, dtype=value.dtype)
        disturbed = value * (1 + (noise - 0.5) * (4 * unit))
        # Whole numbers and numbers of few digits, such as masks, counts and thresholds, are rarely results of rounding.
        is_exact = (value == value.trunc()) | (value == value.bfloat16().to(value.dtype))
        is_exact = is_exact & (value.dtype.itemsize > 2)
        return torch.where(disturbed.isfinite() & ~is_exact, disturbed, value)


class _InFloat64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs each operation in float64, and skips conversions to shorter types."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        written = [each.alias_info is not None and each.alias_info.is_write for each in schema.arguments]
        if any(written):
            # A tensor that is written keeps its type, and so do the numbers written into it.
            return func(*args, **kwargs) if func.overloadpacket.__name__ == "copy_" else func(*_like(args), **kwargs)
        if kwargs.get("dtype") in (torch.float32, torch.float16, torch.bfloat16):
            kwargs = kwargs | {"dtype": torch.float64}
        return func(*tree_map(_widen, args), **tree_map(_widen, kwargs))


def _like(args: Any) -> Any:
    """Convert floats among the arguments to the type of the first argument, which the operation writes."""
    dtype = args[0].dtype
    return tree_map(lambda each: each.to(dtype) if _is_float(each) and each.dtype != dtype else each, args)


def _widen(value: Any) -> Any:
    return value.double() if _is_float(value) and value.dtype != torch.float64 else value


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


@contextmanager
def other_arithmetic(unit: float | None, seed: int = 0, short: float | None = None) -> Iterator[None]:
    """Run torch with relative errors of at most `unit`, or in float64 if `unit` is None.

    short: the relative error of 16-bit numbers, if it is declared separately

    Compiled functions run eagerly inside of the context, with their own source.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        if unit is None:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if unit is None:
            stack.enter_context(_InFloat64())  # type: ignore[no-untyped-call]  # torch does not annotate it
        else:
            stack.enter_context(_Perturbed(unit, unit if short is None else short, seed))
        yield
