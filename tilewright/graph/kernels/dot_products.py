"""Sums of products of narrow integers. In: the summand of a kernel, and a target record. Out: its factors, and the
target's dot-product instruction for them. The kernel stage uses it to lay out factors, codegen and renderers to emit
the instruction.

Such an instruction adds `terms` products to each lane of a vector of sums. Its operands are groups of that many
adjacent elements, one group per lane: a group has as many bits as a sum. All arithmetic wraps, so the result equals
that of the kernel's own multiplications and additions in any order."""

from __future__ import annotations

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple
from tilewright.base.target import DotProduct, Target
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp

_SIGNED = {dtype.bits: dtype for dtype in dtypes.sints}
_UNSIGNED = {dtype.bits: dtype for dtype in dtypes.uints}
_OTHER_SIGN = {
    one: other
    for bits, signed in _SIGNED.items()
    for one, other in ((signed, _UNSIGNED[bits]), (_UNSIGNED[bits], signed))
}


class DotFit(NamedTuple):
    """How an instruction computes a product: the indices of the factors that are its left and right operands. `offset`
    is the index of a factor of the wrong signedness: it is shifted by half its range, and the sum is corrected for
    that."""

    instruction: DotProduct
    order: tuple[int, int]
    offset: int | None


def narrow_factors(value: UOp) -> tuple[UOp, UOp] | None:
    """The two integers that are widened and multiplied; None where the value has another form."""
    if value.op is not Ops.MUL or not value.dtype.is_int:
        return None
    if any(factor.op is not Ops.CAST or not factor.src[0].dtype.is_int for factor in value.src):
        return None
    left, right = (factor.src[0] for factor in value.src)
    return (left, right) if max(left.dtype.bits, right.dtype.bits) < value.dtype.bits else None


def is_widened(dtype: DType, wide: DType) -> bool:
    """Whether a conversion to more bits preserves every value of an integer dtype."""
    return dtype.is_int and wide.is_int and dtype.bits < wide.bits and (dtype.is_unsigned or not wide.is_unsigned)


def usable_dtypes(factor: UOp) -> list[DType]:
    """The dtypes of a factor's width that can represent its values: 0..127 is both signed and unsigned."""
    other = _OTHER_SIGN.get(factor.dtype)
    if other is None or factor.vmin < other.min or factor.vmax > other.max:
        return [factor.dtype]
    return [factor.dtype, other]


def find_dots(
    left: DType, right: DType, total: DType, target: Target, greatest: tuple[int, int] | None = None, terms: int = 0
) -> list[DotFit]:
    """The instruction of the target for products of two dtypes: of those with the fewest instructions for each term,
    the first that needs no offset, else the first. `greatest` are the greatest values of the factors, where less than
    those of their dtypes is known; `terms` are those of a lane, where only such instructions will do."""
    if not (left.is_int and right.is_int):
        return []
    limits = greatest or (int(left.max), int(right.max))
    usable = [each for each in target.dot_products if terms in (0, each.terms)]
    found = [fits for each in usable if (fits := _fits(each, (left, right), total, limits))]
    return min(found, key=lambda fits: (fits[0].instruction.effort, fits[0].offset is not None), default=[])


def _fits(
    instruction: DotProduct, factors: tuple[DType, DType], total: DType, greatest: tuple[int, int]
) -> list[DotFit]:
    if not total.is_int or total.bits != instruction.total.bits:
        return []
    fits = []
    for order in ((0, 1), (1, 0)):
        sides = [(factors[number], operand) for number, operand in zip(order, (instruction.left, instruction.right))]
        if not all(have.is_int and (have.bits == want.bits or is_widened(have, want)) for have, want in sides):
            continue
        offsets = [number for number, (have, want) in zip(order, sides) if have.bits == want.bits and have is not want]
        limit = instruction.max_left
        if limit is not None and (greatest[order[0]] > limit or order[0] in offsets):
            continue
        if len(offsets) < 2:
            fits.append(DotFit(instruction, order, offsets[0] if offsets else None))
    return sorted(fits, key=lambda fit: fit.offset is not None)


def group_dtype(dtype: DType, total: DType, terms: int) -> DType | None:
    """The dtype of one of the `terms` elements of a group, so that the group has as many bits as a sum; None where
    there is no such dtype, or it cannot represent them."""
    if not dtype.is_int or not total.is_int or terms < 2 or total.bits % terms:
        return None
    wide = _SIGNED.get(total.bits // terms)
    if wide is None or dtype.bits == wide.bits:
        return None if wide is None else dtype
    return wide if is_widened(dtype, wide) else None
