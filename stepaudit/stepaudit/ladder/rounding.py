"""Distinguish rounding from miscompilation, by a float64 run beside a call, and by runs with other roundings.

A compiler may keep intermediate values in a higher precision, may add in another order, and may compute a function in
another way. A difference is rounding if the compiled value is as near to a float64 run as the eager value. It is also
rounding if eager itself moves as far when its inexact operations round in another way. Results that are exact in their dtype
are kept, and so are explicit casts: wrong copies, indices and omitted casts are never excused. An integer, a shape or an
infinity is excused only if a run with other roundings gave it.

For results in float64 no run is more precise. A result is exact if it has no more digits than a float32, or those of an
argument; other results have digits that were rounded.
"""

import re
import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from stepaudit.environment import read_product_settings
from stepaudit.ladder.custom_operators import UseOfOperator, note_use
from stepaudit.ladder.observation import VALUES, Deviation, Observation
from stepaudit.operations import OperationMode
from stepaudit.values import digest_values, find_other_elements, is_same, make_dense, scale_of

RUNS: Final = 12
"""The number of eager runs with other roundings."""
MARGIN: Final = 8.0
"""The factor by which the spread of these runs is multiplied."""
FEW_UNITS: Final = 11.0
"""The error of an element that eager rounds as well, in units relative to itself and to the largest value beside it.

It is the tolerance of `torch.testing.assert_close` for float32. Of torch's functions in float64, compiled `gammaincc`
differs most from eager, by 6 units.
"""
_MOST_UNITS: Final = 8400.0
"""The largest error, in units relative to the largest value, that may be rounding if no run shows it."""
_CASTS: Final = {"_to_copy": 0, "copy_": 1}
"""The operations that may round to another dtype because the step says so, and their argument that is rounded."""
_ULPS: Final = 4.0
"""The units of rounding of its result by which a pointwise operation may differ; other operations may differ by more."""
_MATRIX_PRODUCTS: Final = {"mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "dot"}
_ATTENTION: Final = "_scaled_dot_product_flash_attention_for_cpu"
_LINEAR: Final = _MATRIX_PRODUCTS | {"sum", "mean", "cumsum", "convolution", _ATTENTION}
"""Operations that add products of their arguments. Their rounding depends on the size of the summands, not of the result."""
_SCATTERED: Final = frozenset(
    f"{name}{ending}" for name in ("index_add", "scatter_add", "index_put") for ending in ("", "_")
) | {"embedding_dense_backward"}
"""Operations that add values to elements one by one. Their rounding grows with the number of values."""
_FEW: Final = 64
"""The number of values up to which other roundings cover the error of adding them one by one."""
_RELATIVE: Final = re.compile(r"_?(safe_)?softmax|(cum)?prod|\w*(layer|batch|group|rms)_norm")
"""Operations each of whose elements is as accurate, relative to itself, as its arguments are."""
_COARSE: Final = {"high": 2.0**-12, "medium": 2.0**-9}
"""A quarter of the unit to which a GPU may round the factors of a float32 product, by the precision that torch is set to."""


class Float64Run(OperationMode):  # type: ignore[no-untyped-call]
    """A run in which all memory of floats has a shadow in float64, computed by the same operations. Each entry begins anew.

    seed: if given, each inexact result is replaced by another legitimate rounding of it; `has_rounded` says whether one was
    ulps: the units of rounding by which it is replaced; 0 leaves every result as it is

    custom_operators: the operators that torch does not define, with their first use
    """

    def __init__(self, seed: int | None = None, ulps: float = _ULPS) -> None:
        super().__init__()
        self.has_rounded = False
        self.custom_operators: dict[Any, UseOfOperator] = {}
        self._ulps = ulps
        self._seed, self._noise = seed, torch.Generator()
        # The memory, which must stay alive, and its shadow, by address, size and dtype.
        self._shadows: dict[tuple[int, int, torch.dtype], tuple[Any, Tensor]] = {}

    def __enter__(self) -> Any:
        self._shadows.clear()
        self.num_operations = 0
        return super().__enter__()  # type: ignore[no-untyped-call]

    def shadow_of(self, leaf: Any) -> Any:
        """Return the float64 values of a tensor.

        Return other leaves, and all leaves in a run that rounds differently, unchanged.
        """
        return self._find(leaf).clone() if self._seed is None and _has_shadow(leaf) else leaf

    def run_unseen(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run what has no counterpart in float64, and use the present values as the float64 values from now on."""
        out = func(*args, **kwargs)
        for leaf in pytree.tree_leaves((args, kwargs, out)):
            if _has_shadow(leaf):
                self._find(leaf).copy_(leaf.detach())
        return out

    def meet(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation, and run it in float64 as well."""
        note_use(self.custom_operators, func, args, kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags:
            return self.run_unseen(func, args, kwargs)
        if func.is_view:
            return func(*args, **kwargs)
        if self._seed is not None:
            is_exact = not self._ulps or func.overloadpacket.__name__ in _CASTS
            return func(*args, **kwargs) if is_exact else self._round_otherwise(func, args, kwargs)
        shadows = _run_in_float64(func, args, kwargs, self._find)
        if shadows is None:
            return self.run_unseen(func, args, kwargs)
        out = func(*args, **kwargs)
        cast = _CASTS.get(func.overloadpacket.__name__)
        source = out if cast is None else args[cast]
        narrows = _has_shadow(source) and _has_shadow(out) and source.element_size() > out.element_size()
        self._keep(out, shadows.to(out.dtype).double() if narrows else shadows)
        return out

    def _find(self, tensor: Tensor) -> Tensor:
        """Return the view of the float64 memory that corresponds to a tensor's view of its memory."""
        memory = tensor.untyped_storage()
        key = memory.data_ptr(), memory.nbytes(), tensor.dtype
        if key not in self._shadows:
            whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(memory)
            self._shadows[key] = memory, whole.detach().to(torch.float64, copy=True)
        return self._shadows[key][1].as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())

    def _keep(self, out: Any, shadows: Any) -> None:
        for own, shadow in zip(pytree.tree_leaves(out), pytree.tree_leaves(shadows), strict=True):
            if _has_shadow(own) and isinstance(shadow, Tensor):
                held = self._find(own)
                if held.shape == shadow.shape and held.data_ptr() != shadow.data_ptr():
                    held.copy_(shadow)

    def _round_otherwise(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation, and replace its rounded results by other roundings, the same ones for the same arguments."""
        name = func.overloadpacket.__name__
        self._noise.manual_seed(zlib.crc32(repr((self._seed, name, digest_values((args, kwargs)))).encode()))
        # Copies, since the operation may write in place.
        exact = _run_in_float64(func, args, kwargs, lambda each: each.to(torch.float64, copy=True))
        others, sizes = exact, exact
        if name in _SCATTERED:
            # One element may be the sum of any number of values, in any order.
            sums = _run_in_float64(func, args, kwargs, lambda each: each.double().abs())
            counts = _run_in_float64(func, args, kwargs, lambda each: torch.ones_like(each, dtype=torch.float64))
            sizes = None if sums is None or counts is None else sums * (counts / _FEW).clamp_min(1)
        elif name in _LINEAR:
            sizes = _run_in_float64(func, args, kwargs, lambda each: each.double().abs())
        elif _RELATIVE.fullmatch(name):
            others = sizes = _run_in_float64(
                func, args, kwargs, lambda each: self._add_noise(each.double(), each, name)
            )
        digits, is_pointwise = _read_digits((args, kwargs)), torch.Tag.pointwise in func.tags
        out = func(*args, **kwargs)
        if exact is None or others is None or sizes is None:
            return out
        leaves = map(pytree.tree_leaves, (out, exact, others, sizes))
        for value, true, other, size in zip(*leaves, strict=True):
            if not _has_shadow(value) or not isinstance(true, Tensor) or true.shape != value.shape:
                continue
            is_rounded = _is_rounded(value, true, digits, is_pointwise=is_pointwise)
            is_rounded &= true.isfinite() & value.isfinite() & other.isfinite()
            if not bool(is_rounded.any()):
                continue
            self.has_rounded = True
            if others is exact is sizes and not is_pointwise:
                size = torch.where(is_rounded, size.abs(), 0.0).amax().expand_as(true)
            value.copy_(torch.where(is_rounded, self._add_noise(other, value, name, size), value.double()))
        return out

    def _add_noise(self, true: Tensor, like: Tensor, operation: str, size: Tensor | None = None) -> Tensor:
        """Add errors of rounding, relative to a size, to float64 values. like: a tensor of the operation's own dtype."""
        unit = self._ulps * torch.finfo(like.dtype).eps
        if like.is_cuda and like.dtype == torch.float32:
            unit = max(unit, _read_coarse_unit(operation))
        noise = 2 * torch.rand(true.shape, generator=self._noise, dtype=torch.float64).to(true.device) - 1
        return true + noise * (true if size is None else size) * unit


def _read_digits(given: Any) -> list[Tensor]:
    """Return the digits of the numbers in float64 among nested values: their mantissas without signs."""
    leaves = pytree.tree_map_only(float, partial(torch.tensor, dtype=torch.float64), pytree.tree_leaves(given))
    return [leaf.frexp().mantissa.abs() for leaf in leaves if _has_shadow(leaf) and leaf.dtype == torch.float64]


def _is_rounded(value: Tensor, true: Tensor, given: list[Tensor], *, is_pointwise: bool) -> Tensor:
    """Return a mask of the elements of a result that are rounded. given: the digits of the arguments in float64."""
    if value.dtype != torch.float64:
        return value.double() != true
    is_exact = (value == value.float()) | ((value == value.trunc()) & (value.abs() < 2.0**53))
    (digits,) = _read_digits(value)
    # The digits of an argument come from a copy, another sign, or a power of two as a factor.
    for each in given:
        is_exact |= digits == each.to(digits.device) if is_pointwise else torch.isin(digits, each.to(digits.device))
    return ~is_exact


def _get_unit(dtype: torch.dtype) -> float:
    """Return the unit of rounding of a dtype, at most that of float32."""
    return min(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)


def _read_coarse_unit(operation: str) -> float:
    """Return the relative rounding of products of float32 that torch's settings allow on a GPU; 0 for that of float32."""
    if operation not in _MATRIX_PRODUCTS and "convolution" not in operation:
        return 0.0
    settings = read_product_settings()
    if "convolution" in operation:
        return _COARSE["high"] if settings["cudnn.allow_tf32"] != "False" else 0.0
    is_tf32 = "tf32" in settings["cuda.matmul.fp32_precision"] or settings["cuda.matmul.allow_tf32"] == "True"
    return _COARSE.get(settings["float32_matmul_precision"], _COARSE["high"] if is_tf32 else 0.0)


def _has_shadow(leaf: Any) -> bool:
    is_plain = isinstance(leaf, Tensor) and leaf.layout == torch.strided and not leaf.is_quantized
    return is_plain and leaf.is_floating_point() and leaf.element_size() > 1


def _run_in_float64(func: Any, args: Any, kwargs: Any, convert: Any) -> Any:
    """Run an operation on float64 arguments. Return None if it has no float arguments, or rejects float64."""

    def converted(leaf: Any) -> Any:
        if isinstance(leaf, torch.dtype) and leaf.is_floating_point:
            return torch.float64
        return convert(leaf) if _has_shadow(leaf) else leaf

    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        args, kwargs = pytree.tree_map(converted, (args, kwargs))
        if func._schema.is_mutable and not any(_has_shadow(each) for each in pytree.tree_leaves((args, kwargs))):
            # Integers written in place must not be written twice.
            return None
        return func(*args, **kwargs)
    except Exception:  # An operation may lack float64, or mix dtypes.
        return None
    finally:
        torch.set_default_dtype(before)


def may_be_rounding(
    deviation: Deviation, expected: Observation, actual: Observation, num_units: float = _MOST_UNITS
) -> bool:
    """Return whether a deviation is one of floats, and small beside the largest of them."""
    before, after = (each.leaves(deviation.kind).get(deviation.where) for each in (expected, actual))
    if (
        not isinstance(before, Tensor)
        or not isinstance(after, Tensor)
        or not before.is_floating_point()
        or (before.shape, before.dtype, before.device) != (after.shape, after.dtype, after.device)
    ):
        return False
    unit = max(num_units * _get_unit(before.dtype), MARGIN * torch.finfo(before.dtype).eps)
    error = unit * max(scale_of(before), 1e-30)
    before, after = (make_dense(each.detach()).double() for each in (before, after))
    return bool(torch.isclose(after, before, 0.0, error, equal_nan=True).all())


class Excuse(NamedTuple):
    """A difference that counts as rounding, in units in the last place of eager's dtype.

    num:  the number of elements that differ
    ulps: between eager's and the compiled value; None if the values are not finite floats, so that other roundings gave
          the compiled value itself
    of_eager, of_found: from float64 to each of the two
    """

    call: str
    where: str
    num: int
    ulps: float | None = None
    of_eager: float = 0.0
    of_found: float = 0.0

    @property
    def size(self) -> str:
        """The size of the difference."""
        return "another value" if self.ulps is None else f"up to {self.ulps:.3g} ulps"

    def __str__(self) -> str:
        """Return a sentence."""
        if self.ulps is None:
            return f"{self.call}, {self.where}: {self.num:,} elements have another value, which another rounding also gives"
        return (
            f"{self.call}, {self.where}: {self.num:,} elements differ by up to {self.ulps:.3g} ulps;"
            f" from float64 eager is {self.of_eager:.3g} ulps away, compiled code {self.of_found:.3g}"
        )


def excuse(
    deviation: Deviation,
    expected: Observation,
    actual: Observation,
    shadow: Observation,
    others: Sequence[Observation],
) -> Excuse | None:
    """Return the excuse of a deviation that is rounding; None if it is not.

    shadow: the same call in float64; others: the same call in eager with other roundings
    """
    if deviation.kind not in (*VALUES, "structure"):
        return None

    name = deviation.call, deviation.where

    def read(one: Observation) -> Any:
        if deviation.kind == "structure":
            return list(one.leaves(deviation.where))
        return one.leaves(deviation.kind).get(deviation.where)

    before, after, variants = read(expected), read(actual), [*map(read, others)]
    if not isinstance(before, Tensor) or not isinstance(after, Tensor):
        return Excuse(*name, 1) if any(is_same(each, after) for each in variants) else None
    if any(getattr(before, what) != getattr(after, what) for what in ("dtype", "device", "requires_grad")):
        return None
    held = [each for each in variants if isinstance(each, Tensor)]
    if before.shape != after.shape:
        return Excuse(*name, after.numel()) if any(each.shape == after.shape for each in held) else None
    held = [each.detach() for each in held if each.shape == before.shape]
    is_other = find_other_elements(before, after).detach()
    if before.is_floating_point():
        return _excuse_float(deviation, before.detach(), after.detach(), read(shadow), held, is_other)
    is_given = ~is_other
    for each in held:
        is_given |= each == after
    return Excuse(*name, int(is_other.sum())) if bool(is_given.all()) else None


def _excuse_float(
    deviation: Deviation, before: Tensor, after: Tensor, exact: Any, held: list[Tensor], is_other: Tensor
) -> Excuse | None:
    one, other = before.double(), after.double()
    if not isinstance(exact, Tensor) or exact.shape != one.shape:
        exact = one
    exact = exact.detach().double()
    step = torch.finfo(before.dtype).eps * exact.abs().clamp_min(torch.finfo(before.dtype).tiny)
    of_eager, of_found = (one - exact).abs(), (other - exact).abs()
    few = FEW_UNITS * _get_unit(before.dtype)
    spread, is_given = torch.zeros_like(one), torch.zeros_like(is_other)
    for each in held:
        gap = (each.double() - one).abs()
        spread = torch.maximum(spread, torch.where(each.isfinite() & before.isfinite(), gap, 0.0))
        # A value that is not finite, or is finite where eager's is not, must be one that another rounding gave.
        is_given |= (each == after) | (each.isnan() & after.isnan())
        is_given |= ~before.isfinite() & each.isfinite() & ((each.double() - other).abs() <= few * each.double().abs())
    bound = torch.maximum(2 * of_eager + 2 * step, MARGIN * spread)
    is_inexact = (spread > 0) | (of_eager > 0)
    bound = torch.where(is_inexact, torch.maximum(bound, few * (exact.abs() + scale_of(exact))), bound)
    is_near = (of_found <= bound) | ((other - one).abs() <= bound)
    is_right = is_given | (is_near & before.isfinite() & after.isfinite())
    if bool((is_other & ~is_right).any()):
        return None

    gaps = [(gap / step)[is_other] for gap in ((other - one).abs(), of_eager, of_found)]
    sizes = [float(gap.amax()) if gap.numel() else 0.0 for gap in gaps if bool(gap.isfinite().all())]
    return Excuse(deviation.call, deviation.where, int(is_other.sum()), *(sizes if len(sizes) == len(gaps) else ()))
