"""Sums of products of narrow integers. In: what a kernel sums, and a target record. Out: its factors, and the target's
dot-product instruction for them. The kernel stage asks it to lay out factors, codegen and renderers to use them so.

Such an instruction adds `terms` products to each lane of a vector of sums. Its factors are groups of that many
neighbours, one group to a lane: a group fills the bits of a sum. All arithmetic wraps, so it computes what the kernel's
own multiplications and additions do, whatever their order."""

from __future__ import annotations

from typing import NamedTuple

from tilewright.base.dtype import DType, dtypes
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
    """How an instruction computes a product: the numbers of the factors that are its left and its right operand. Where
    one of them has the other sign, its number is that of `offset`: it is shifted by half its range, and what that adds
    to the sum is taken off again."""

    instruction: DotProduct
    order: tuple[int, int]
    offset: int | None


def narrow_factors(value: UOp) -> tuple[UOp, UOp] | None:
    """The two integers that are widened and then multiplied; None where the value is something else."""
    if value.op is not Ops.MUL or not value.dtype.is_int:
        return None
    if any(factor.op is not Ops.CAST or not factor.src[0].dtype.is_int for factor in value.src):
        return None
    left, right = (factor.src[0] for factor in value.src)
    return (left, right) if max(left.dtype.bits, right.dtype.bits) < value.dtype.bits else None


def is_widened(dtype: DType, wide: DType) -> bool:
    """Whether a conversion keeps every value of an integer dtype, in more bits."""
    return dtype.is_int and wide.is_int and dtype.bits < wide.bits and (dtype.is_unsigned or not wide.is_unsigned)


def usable_dtypes(factor: UOp) -> list[DType]:
    """The dtypes of a factor's width that hold its values: one of 0 to 127 is signed and unsigned."""
    other = _OTHER_SIGN.get(factor.dtype)
    if other is None or factor.vmin < other.min or factor.vmax > other.max:
        return [factor.dtype]
    return [factor.dtype, other]


def find_dots(left: DType, right: DType, total: DType, target: Target) -> list[DotFit]:
    """The ways in which one instruction of the target computes products of two dtypes: of those that take most terms at
    once, the first that needs no offset, or else the first."""
    found = [fits for each in target.dot_products if (fits := _fits(each, (left, right), total))]
    return min(found, key=lambda fits: (-fits[0].instruction.terms, fits[0].offset is not None), default=[])


def _fits(instruction: DotProduct, factors: tuple[DType, DType], total: DType) -> list[DotFit]:
    if not total.is_int or total.bits != instruction.total.bits:
        return []
    fits = []
    for order in ((0, 1), (1, 0)):
        sides = [(factors[number], operand) for number, operand in zip(order, (instruction.left, instruction.right))]
        if not all(have.is_int and (have.bits == want.bits or is_widened(have, want)) for have, want in sides):
            continue
        offsets = [number for number, (have, want) in zip(order, sides) if have.bits == want.bits and have is not want]
        if len(offsets) < 2:
            fits.append(DotFit(instruction, order, offsets[0] if offsets else None))
    return sorted(fits, key=lambda fit: fit.offset is not None)


def group_dtype(dtype: DType, total: DType, terms: int) -> DType | None:
    """The dtype that holds one of the `terms` elements of a group, so that the group fills the bits of a sum; None
    where there is no such dtype, or it does not hold them."""
    if not dtype.is_int or not total.is_int or terms < 2 or total.bits % terms:
        return None
    wide = _SIGNED.get(total.bits // terms)
    if wide is None or dtype.bits == wide.bits:
        return None if wide is None else dtype
    return wide if is_widened(dtype, wide) else None
