"""Sorting, and sampling by weight. In: a tensor and an axis. Out: the sorted elements and their source indices.
Elements are compared by integer keys, which order all dtypes alike: NaN is last, and sorting is stable. CPUs sort rows
by digits (serial_sort.py of graph/kernels/sorting), and so do devices with work-groups (radix.py). Elsewhere, and in
short rows, blocks are sorted by rank, the number of smaller elements; sorted blocks are merged in pairs: one position
in eight of the result finds its element by bisection, the others follow from it. So n elements take about n*(block +
log(n)) steps, without waiting for the host."""

from __future__ import annotations

import math
from typing import Self

from tilewright.base.dtype import DType, dtypes, to_dtype
from tilewright.base.errors import ShapeError
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Devices
from tilewright.graph.uop import UOp
from tilewright.runtime.device import canonical_device, open_driver
from tilewright.tensor.core import nodes
from tilewright.tensor.core.checks import check_axis, check_plain_size, check_whole
from tilewright.tensor.families.first_elements import first_by_passes, is_found_by_passes
from tilewright.tensor.families.random import RandomMixin
from tilewright.tensor.primitives.indexing import ValuesAndIndices

# Axes up to this length are sorted as one block, longer ones in blocks of half of it.
_ONE_BLOCK = 256
# The time to sort a row by one digit on a CPU core, and the time for each of its elements, in comparisons of a pair of
# keys in vectors of 32 bits: counting the values of a digit takes as long for a short row. Measured on a Neoverse N1
# with rows of 40 to 107 keys of 4 digits.
_PAIRS_OF_DIGIT = 570
_PAIRS_OF_MOVE = 8
_DIGITS_OF_HALF = 4  # digits of 8 bits in half of a key of 64
# Every _STRIDE-th element of a merged row is found by bisection, and those between from it. A byte has a bit for each.
_STRIDE = 8
# The first k elements of rows at least _FEW * k long are found without sorting the rest.
_FEW = 16
_SIGNED = {8: dtypes.int8, 16: dtypes.int16, 32: dtypes.int32, 64: dtypes.int64}


class SortingMixin(RandomMixin):
    """sort, argsort, topk, multinomial, randperm."""

    def argsort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> Self:
        """The indices that sort an axis; the sort is always stable."""
        del stable
        axis = check_axis("argsort", dim, self.ndim)
        if 0 in self.shape or self.ndim == 0:
            return self._new(build.const(dtypes.int64, 0, self.shape))
        keys = nodes.move_to_last(sort_keys(self.uop, descending), axis)
        indices = build.cast(order_on(self.device, keys), dtypes.int64)
        return self._new(nodes.move_from_last(indices, axis))

    def sort(self, dim: int = -1, descending: bool = False, stable: bool = True) -> ValuesAndIndices[Self]:
        """The sorted elements along an axis and their source indices; the sort is always stable."""
        del stable
        check_plain_size("sort", check_axis("sort", dim, self.ndim), self.shape)
        indices = self.argsort(dim, descending)
        return ValuesAndIndices(self.gather(dim, indices) if self.ndim else self, indices)

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted_: bool = True) -> ValuesAndIndices[Self]:
        """The k largest (or smallest) elements along an axis and their indices, in sorted order."""
        del sorted_  # the result is always sorted
        axis = check_axis("topk", dim, self.ndim)
        check_plain_size("topk", axis, self.shape)
        size = self.shape[axis] if self.ndim else 1
        check_whole("topk", "k", k)
        if not 0 <= k <= size:
            raise ShapeError("topk", f"{k} of the {size} elements of axis {dim}", f"give k in 0..{size}")
        if self.ndim == 0 or 0 in self.shape or k == 0:
            indices = self.argsort(axis, descending=largest)
            indices = indices._slice_axis(axis, 0, k).contiguous() if self.ndim else indices
        else:
            keys = sort_keys(self.uop, largest)
            indices = self._new(build.cast(first_on(self.device, keys, axis, k), dtypes.int64)).contiguous()
        return ValuesAndIndices(self.gather(axis, indices) if self.ndim else self, indices)

    # ------------------------------------------------------------ random order

    def multinomial(self, num_samples: int = 1, replacement: bool = False) -> Self:
        """Indices of the last axis, drawn with probabilities proportional to its elements."""
        if self.ndim not in (1, 2) or self.shape[-1] == 0:
            message = f"shape {self.shape}"
            raise ShapeError("multinomial", message, "give (classes,) or (rows, classes), with at least one class")
        count = self.shape[-1]
        check_whole("multinomial", "num_samples", num_samples)
        if num_samples < 1 or (num_samples > count and not replacement):
            message = f"{num_samples} samples of {count} classes without replacement"
            raise ShapeError("multinomial", message, f"give 1..{count} samples, or replacement=True")
        weights = self.detach().cast(dtypes.float64 if self.dtype is dtypes.float64 else dtypes.float32)
        if not replacement:
            # Of exponential waiting times with these rates, each class has the shortest one with its probability.
            uniform = weights.rand(*self.shape, device=self.device, dtype=weights.dtype)
            return (weights / -(1 - uniform).log()).topk(num_samples)[1]
        running = weights.cumsum(-1).contiguous()
        total = running[..., -1:]
        draws = weights.rand(*self.shape[:-1], num_samples, device=self.device, dtype=weights.dtype) * total
        found = self._new(nodes.count_not_greater(running.uop, draws.contiguous().uop))
        # A product that is rounded up to the total belongs to the last class with a nonzero weight.
        last = (running < total).cast(dtypes.int32).sum(-1, keepdim=True)
        return found.cast(dtypes.int64).minimum(last)

    @classmethod
    def randperm(cls, n: int, device: str | None = None, dtype: DType | str = dtypes.int32) -> Self:
        """A random permutation of 0..n-1: the sort order of n random numbers."""
        check_whole("randperm", "n", n, least=0)
        if n == 0:
            return cls.zeros(0, device=device, dtype=dtype)
        device = canonical_device(device)
        order = order_on(device, cls._random_bits(n, device))
        return cls._from_uop(build.cast(order, to_dtype(dtype)), device).contiguous()


# ---------------------------------------------------------------- keys


def sort_keys(node: UOp, descending: bool) -> UOp:
    """Integer keys with the order of the elements."""
    dtype = node.dtype
    if dtype.is_bool:
        keys = build.cast(node, dtypes.uint8)
    elif dtype.is_float:
        keys = _keys_of_floats(node)
    else:
        keys = node
    if descending:
        keys = build.alu(Ops.XOR, keys, build.const(keys.dtype, -1 if not keys.dtype.is_unsigned else keys.dtype.max))
    return build.contiguous(keys)


def _keys_of_floats(node: UOp) -> UOp:
    """Positive floats have the order of their bits, negative ones the reverse; zeros are equal, NaN is last."""
    integer = _SIGNED[node.dtype.bits]
    plain = build.where(build.alu(Ops.CMPEQ, node, build.const(node.dtype, 0)), build.const(node.dtype, 0), node)
    bits = build.bitcast(plain, integer)
    flipped = build.alu(Ops.XOR, bits, build.const(integer, integer.max))
    keys = build.where(build.alu(Ops.CMPLT, bits, build.const(integer, 0)), flipped, bits)
    return build.where(build.alu(Ops.CMPNE, node, node), build.const(integer, integer.max), keys)


# ---------------------------------------------------------------- order


def order_on(device: Devices, keys: UOp) -> UOp:
    """The sort order of the last axis, by the kernels of the device: for CPU cores, or for work-groups. A device that
    cannot compute with the keys or has no warps merges blocks: where threads run one after the other, hundreds of
    barriers cost more than they save."""
    target = open_driver(device).target if isinstance(device, str) else None
    if target is None or is_symbolic(keys.shape):
        return order_of_last_axis(keys)
    rows = (math.prod(keys.shape[:-1]), keys.shape[-1])
    if target.has_threads and is_sorted_by_digits(rows[1], keys.dtype.itemsize):
        from tilewright.graph.kernels.sorting.serial_sort import order_of_rows  # many programs do not sort

        return build.reshape(order_of_rows(build.contiguous(build.reshape(keys, rows))), keys.shape)
    if target.warp_size == 1 or keys.dtype not in target.native or keys.shape[-1] == 1:
        return order_of_last_axis(keys)
    from tilewright.graph.kernels.sorting.radix import sorted_rows  # only used on GPUs: imported late

    places, _ = sorted_rows(build.contiguous(build.reshape(keys, rows)), target)
    return build.reshape(places, keys.shape)


def is_sorted_by_digits(size: int, itemsize: int) -> bool:
    """Whether a CPU core sorts a row by the digits of its keys in less time than it compares all pairs of keys. The
    upper half of 64 bits is the same in most rows, and then not sorted by."""
    digits = min(itemsize, _DIGITS_OF_HALF)
    return size**2 * max(1.0, itemsize / 4) >= digits * (_PAIRS_OF_DIGIT + _PAIRS_OF_MOVE * size)


def order_of_last_axis(keys: UOp) -> UOp:
    """For each row of integer keys the indices that sort it in ascending order, as int32."""
    keys = build.contiguous(keys)
    outer, size = keys.shape[:-1], keys.shape[-1]
    if size <= _ONE_BLOCK:
        return order_of_blocks(keys)
    block = _ONE_BLOCK // 2
    none = ((0, 0),) * len(outer)
    count = -(-size // block)
    padded = nodes.pad_with(keys, (*none, (0, count * block - size)), keys.dtype.max)
    keys = build.contiguous(build.reshape(padded, (*outer, count, block)))
    indices = order_of_blocks(keys)
    keys = build.contiguous(nodes.read_rows(keys, indices))
    start = build.axis_iota(indices.shape, len(outer)) * block
    indices = build.contiguous(build.alu(Ops.ADD, indices, start))
    while count > 1:
        count = -(-count // 2)
        pairs = (*none, (0, 2 * count - keys.shape[-2]), (0, 0))
        # An odd number of blocks is padded with one whose keys sort last.
        wide = (*outer, count, 2 * block)
        keys = build.reshape(build.contiguous(nodes.pad_with(keys, pairs, keys.dtype.max)), wide)
        indices = build.reshape(build.contiguous(nodes.pad_with(indices, pairs, size)), wide)
        source = build.contiguous(merge_sources(keys, block))
        indices = build.contiguous(nodes.read_rows(indices, source))
        block *= 2
        if count > 1:
            keys = build.contiguous(nodes.read_rows(keys, source))
    return nodes.slice_axis(build.reshape(indices, (*outer, block)), len(outer), 0, size)


def first_on(device: Devices, keys: UOp, axis: int, k: int) -> UOp:
    """The indices of the k smallest elements of an axis in ascending order, as int32, by the kernels of the device."""
    size = keys.shape[axis]
    target = open_driver(device).target if isinstance(device, str) else None
    if size > _ONE_BLOCK and size >= k * _FEW:
        return nodes.move_from_last(first_in_blocks(device, nodes.move_to_last(keys, axis), k), axis)
    if target is not None and target.has_threads and is_found_by_passes(keys.dtype, size, k, target):
        return first_by_passes(nodes.without_storing(keys), axis, k)
    order = order_on(device, build.contiguous(nodes.move_to_last(keys, axis)))
    return nodes.move_from_last(nodes.slice_axis(order, len(keys.shape) - 1, 0, k), axis)


def first_in_blocks(device: Devices, keys: UOp, k: int) -> UOp:
    """The same of the last axis, for a small k: the elements are in the k blocks with the smallest first elements, as
    k elements precede any element of another block. So most of a row is read once and not sorted."""
    keys = build.contiguous(keys)
    outer, size = keys.shape[:-1], keys.shape[-1]
    # About as many blocks as the chosen blocks have elements.
    block = math.isqrt(size // k)
    count = -(-size // block)
    padded = nodes.pad_with(keys, (*((0, 0),) * len(outer), (0, count * block - size)), keys.dtype.max)
    padded = build.contiguous(padded)
    least = build.reduce_axis(Ops.MIN, build.reshape(padded, (*outer, count, block)), (len(outer) + 1,))
    least = build.contiguous(build.reshape(least, (*outer, count)))
    chosen = build.contiguous(first_on(device, least, len(outer), k))
    # In ascending position, so that the sort stays stable across blocks.
    chosen = build.contiguous(nodes.read_rows(chosen, order_on(device, chosen)))
    inside = (*outer, k, block)
    start = build.expand(build.reshape(chosen * block, (*outer, k, 1)), inside)
    indices = build.alu(Ops.ADD, start, build.axis_iota(inside, len(outer) + 1))
    indices = build.contiguous(build.reshape(indices, (*outer, k * block)))
    found = first_on(device, build.contiguous(nodes.read_rows(padded, indices)), len(outer), k)
    return nodes.read_rows(indices, build.contiguous(found))


def order_of_blocks(keys: UOp) -> UOp:
    """The sort order of each row: an element's rank is the number of elements that precede it. Comparisons are of 32
    bits and are selected as integers, so that their vectors are as wide as those of the ranks."""
    outer, size = keys.shape[:-1], keys.shape[-1]
    keys = build.contiguous(build.cast(keys, dtypes.int32)) if keys.dtype.itemsize < 4 else keys
    if size == 1:
        return build.const(dtypes.int32, 0, keys.shape)
    square = (*outer, size, size)
    last = len(square) - 1
    own = build.expand(build.reshape(keys, (*outer, size, 1)), square)
    other = build.expand(build.reshape(keys, (*outer, 1, size)), square)
    is_earlier = build.alu(Ops.CMPLT, build.axis_iota(square, last), build.axis_iota(square, last - 1))
    is_less = build.cast(build.alu(Ops.CMPLT, other, own), dtypes.int32)
    is_at_most = build.cast(build.alu(Ops.CMPLT, own, other).logical_not(), dtypes.int32)
    before = build.where(is_earlier, is_at_most, is_less)
    rank = build.contiguous(build.reduce_axis(Ops.ADD, before, (last,)))
    # The element of rank k goes to position k.
    ranks = build.expand(build.reshape(rank, (*outer, 1, size)), square)
    is_here = build.alu(Ops.CMPEQ, ranks, build.axis_iota(square, last - 1))
    number = build.where(is_here, build.axis_iota(square, last), build.const(dtypes.int32, 0))
    return build.contiguous(build.reshape(build.reduce_axis(Ops.ADD, number, (last,)), keys.shape))


def merge_sources(keys: UOp, half: int) -> UOp:
    """For rows of two sorted halves, the source index of each element of the merged row. Of the first k merged
    elements, the number that comes from the first half is the number of its elements i that precede element k-1-i of
    the second. It is searched in the whole row for one position in `_STRIDE` ** 2, then between two of those for one in
    `_STRIDE`; from there elements are taken one by one."""
    outer, size = keys.shape[:-1], keys.shape[-1]
    far = build.axis_iota((*outer, size // _STRIDE**2), len(outer)) * _STRIDE**2
    known = build.contiguous(_count_of_first(keys, half, far, (far - half).maximum(0), half))
    near = build.axis_iota((*outer, size // _STRIDE), len(outer)) * _STRIDE
    least = build.expand(build.reshape(known, (*known.shape, 1)), (*known.shape, _STRIDE))
    least = build.reshape(least, near.shape).maximum(near - half)
    count = build.contiguous(_count_of_first(keys, half, near, least, _STRIDE * (_STRIDE - 1)))
    choices = build.contiguous(_choices_of_first(keys, half, near, count))
    shape = (*near.shape, _STRIDE)
    choices, count, near = (build.expand(build.reshape(x, (*x.shape, 1)), shape) for x in (choices, count, near))
    step = build.axis_iota(shape, len(shape) - 1)
    # The number of set bits below this one is the number of elements taken from the first half before.
    count = count + _ones(choices & ((build.const(dtypes.int32, 1) << step) - 1))
    is_first = ((choices >> step) & 1).ne(0)
    return build.reshape(build.where(is_first, count, near + step - count + half), keys.shape)


def _count_of_first(keys: UOp, half: int, k: UOp, least: UOp, span: int) -> UOp:
    """How many of the first k elements of each merged row come from its first half, searched in least..least+span."""
    most = k.minimum(half)

    def goes_on(count: UOp) -> UOp:
        first, second = nodes.read_rows(keys, count - 1), nodes.read_rows(keys, k - count + half)
        return (most < count).logical_not() & (second < first).logical_not()

    return nodes.bisect(least, span, goes_on)


def _choices_of_first(keys: UOp, half: int, k: UOp, count: UOp) -> UOp:
    """The sources of `_STRIDE` elements of each merged row from k on, where `count` of its first k elements come from
    the first half. Bit t is set where element k+t does as well. As in the bisection, intermediate results are stored
    every few steps."""
    choices = build.const(dtypes.int32, 0, k.shape)
    taken = count
    for step in range(_STRIDE):
        if step == _STRIDE // 2:
            choices = build.contiguous(choices)
            taken = count + _ones(choices)
        other = k + step - taken
        first, second = nodes.read_rows(keys, taken), nodes.read_rows(keys, other + half)
        is_first = (taken < half) & (other.eq(half) | (second < first).logical_not())
        choices = choices + build.cast(is_first, dtypes.int32) * (1 << step)
        taken = taken + build.cast(is_first, dtypes.int32)
    return choices


def _ones(byte: UOp) -> UOp:
    """The number of set bits of a number below 256, summed in pairs, fours, then eight."""
    pairs = byte - ((byte >> 1) & 0x55)
    fours = (pairs & 0x33) + ((pairs >> 2) & 0x33)
    return (fours + (fours >> 4)) & 0x0F
