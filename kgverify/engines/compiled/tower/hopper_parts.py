"""The work of the groups of the Hopper kernel: gather, stream, multiply, normalize."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from kgverify.engines.compiled.state import PAD

_PAD = gl.constexpr(PAD)


@gluon.jit
def find_goals(index, start, num_rows, R: gl.constexpr, LAYOUT: gl.constexpr, HAS_INDEX: gl.constexpr):
    """Return the goals of R rows of the program, int32 [R], and which of them exist."""
    goal = start + gl.arange(0, R, layout=LAYOUT)
    inside = goal < num_rows
    if HAS_INDEX:
        goal = gl.load(index + goal, mask=inside, other=0)
    return goal, inside


@gluon.jit
def has_atoms(atoms, index, start, num_rows, A, M: gl.constexpr, HAS_INDEX: gl.constexpr):
    """Return a number above 0 if any of M goals has an atom."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    goal, inside = find_goals(index, start, num_rows, M, LAYOUT, HAS_INDEX)
    predicate = gl.load(atoms + goal.to(gl.int64) * (3 * A), mask=inside, other=_PAD)
    return gl.max((predicate != _PAD).to(gl.int32), 0)


@gluon.jit
def add_atoms(atoms, goal, inside, A, rows, first_rows, input_bias, H: gl.constexpr, LAYOUT: gl.constexpr):
    """Return the input layer's output, float32 [R, h]. An atom's symbols are read while the previous atom's rows are loaded."""
    column = gl.arange(0, H, layout=gl.SliceLayout(0, LAYOUT))
    first_variable = gl.load(first_rows)
    first_constant = gl.load(first_rows + 1)
    own = atoms + goal.to(gl.int64) * (3 * A)
    predicate = gl.load(own, mask=inside, other=_PAD)
    first = gl.load(own + 1, mask=inside, other=0)
    second = gl.load(own + 2, mask=inside, other=0)
    is_atom = predicate != _PAD
    x = gl.zeros([goal.shape[0], H], gl.float32, layout=LAYOUT)
    num_atoms = gl.zeros([goal.shape[0]], gl.float32, layout=gl.SliceLayout(1, LAYOUT))
    j = 0
    while gl.max(is_atom.to(gl.int32), 0) > 0:
        mask = is_atom[:, None]
        first_row = gl.where(first < 0, first_variable - first - 1, first_constant + first)
        second_row = gl.where(second < 0, first_variable - second - 1, first_constant + second)
        of_predicate = gl.load(rows + (predicate * H)[:, None] + column[None, :], mask=mask, other=0.0)
        of_first = gl.load(rows + (first_row * H)[:, None] + column[None, :], mask=mask, other=0.0)
        of_second = gl.load(rows + (second_row * H)[:, None] + column[None, :], mask=mask, other=0.0)
        num_atoms += is_atom.to(gl.float32)
        j += 1
        more = is_atom & (j < A)
        predicate = gl.load(own + 3 * j, mask=more, other=_PAD)
        first = gl.load(own + 3 * j + 1, mask=more, other=0)
        second = gl.load(own + 3 * j + 2, mask=more, other=0)
        is_atom = predicate != _PAD
        x += of_predicate.to(gl.float32)
        x += of_first.to(gl.float32)
        x -= of_second.to(gl.float32)
    return x / gl.maximum(num_atoms, 1.0)[:, None] + gl.load(input_bias + column)[None, :]


@gluon.jit
def _step(place, phase, NUM_SLICES: gl.constexpr):
    """Return the place of the next slice, and the phase of its barriers."""
    place += 1
    if place == NUM_SLICES:
        place = 0
        phase ^= 1
    return place, phase


@gluon.jit
def _stream_slice(weights, row, ring, full, empty, place, phase, H: gl.constexpr, K: gl.constexpr):
    mbarrier.wait(empty.index(place), phase)
    mbarrier.expect(full.index(place), K * H * 2)
    tma.async_copy_global_to_shared(weights, [row, 0], full.index(place), ring.index(place))


@gluon.jit
def stream(
    atoms,
    index,
    num_rows,
    A,
    weights,
    low_weights,
    ring,
    full,
    empty,
    BLOCKS: gl.constexpr,
    H: gl.constexpr,
    M: gl.constexpr,
    K: gl.constexpr,
    NUM_SLICES: gl.constexpr,
    IS_SPLIT: gl.constexpr,
    HAS_INDEX: gl.constexpr,
    HAS_COUNT: gl.constexpr,
):
    """Stream the weights of all blocks, slice by slice, once for each 128 goals."""
    place = 0
    phase = 1
    for tile in range(gl.program_id(0), (num_rows + M - 1) // M, gl.num_programs(0)):
        is_used = num_rows
        if not HAS_COUNT:
            is_used = has_atoms(atoms, index, tile * M, num_rows, A, M, HAS_INDEX)
        if is_used > 0:
            for row in range(0, BLOCKS * H, K):
                _stream_slice(weights, row, ring, full, empty, place, phase, H, K)
                place, phase = _step(place, phase, NUM_SLICES)
                if IS_SPLIT:
                    _stream_slice(low_weights, row, ring, full, empty, place, phase, H, K)
                    place, phase = _step(place, phase, NUM_SLICES)


@gluon.jit
def multiply(
    acc,
    high,
    low,
    ring,
    full,
    empty,
    ahead,
    place,
    phase,
    GROUP: gl.constexpr,
    H: gl.constexpr,
    K: gl.constexpr,
    NUM_SLICES: gl.constexpr,
    LEAD: gl.constexpr,
    IS_SPLIT: gl.constexpr,
):
    """Return acc + state @ weights, float32 [64, h]. A slice is released once the products of the next are issued."""
    before = place
    PARTS: gl.constexpr = 2 if IS_SPLIT else 1
    for step in gl.static_range(H // K * PARTS):
        mbarrier.wait(full.index(place), phase)
        acc = warpgroup_mma(high.slice(step // PARTS * K, K, dim=1), ring.index(place), acc, is_async=True)
        if IS_SPLIT and step % 2 == 0:
            acc = warpgroup_mma(low.slice(step // PARTS * K, K, dim=1), ring.index(place), acc, is_async=True)
        if step > 0:
            acc = warpgroup_mma_wait(2 if IS_SPLIT and step % 2 == 0 else 1, deps=(acc,))
            mbarrier.arrive(empty.index(before), count=1)
            if GROUP == 0 and step == LEAD:
                mbarrier.arrive(ahead, count=1)
        before = place
        place, phase = _step(place, phase, NUM_SLICES)
    y = warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.arrive(empty.index(before), count=1)
    return y, place, phase


@gluon.jit
def normalize(x, H: gl.constexpr):
    """Apply LayerNorm without scale and shift."""
    mean = gl.sum(x, 1) * (1.0 / H)
    variance = gl.maximum(gl.sum(x * x, 1) * (1.0 / H) - mean * mean, 0.0)
    factor = gl.rsqrt(variance + 1e-5)
    return x * factor[:, None] - (mean * factor)[:, None]


@gluon.jit
def load_vector(vectors, kept, block, WHICH: gl.constexpr, H: gl.constexpr, KEEPS: gl.constexpr, LAYOUT: gl.constexpr):
    """Load a bias, scale or shift of a block, float32 [1, h]."""
    if KEEPS:
        vector = kept.index(3 * block + WHICH).load(gl.SliceLayout(0, LAYOUT))
    else:
        vector = gl.load(vectors + block * H + gl.arange(0, H, layout=gl.SliceLayout(0, LAYOUT)))
    return vector[None, :]
