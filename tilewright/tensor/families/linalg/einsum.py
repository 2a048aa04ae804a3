"""einsum and rearrange. In: "ij,jk->ik" and tensors, or "b (h w) c -> b c h w" and a tensor. Out: a tensor. An einsum
contracts two operands at a time, from the left, each time as one product and one sum over the letters that no later
operand has; a rearrangement is a permutation between two reshapes."""

from __future__ import annotations

import math
import re
from typing import Any, Self

from tilewright.base.dtype import DType, promote, to_dtype
from tilewright.base.errors import ShapeError
from tilewright.base.records import NamedTuple
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp
from tilewright.tensor.core.base import check_devices
from tilewright.tensor.families.base import Family
from tilewright.tensor.families.linalg.products import multiply_and_sum
from tilewright.tensor.primitives.reduce import accumulate_dtype

# An ellipsis within brackets: its axes are merged.
_JOINED = "(...)"


class Lettered(NamedTuple):
    """An operand: a node and a name for each of its axes; those of an ellipsis are "0", "1", ... from the last."""

    names: tuple[str, ...]
    node: UOp


class EinsumMixin(Family):
    """einsum, rearrange, diag."""

    @classmethod
    def einsum(cls, formula: str, *operands: Any, dtype: DType | str | None = None) -> Self:
        """The sum of products given by the formula: "ij,jk->ik" is a matrix product, "ii->i" a diagonal, "...ij->...ji"
        a transposition. Without an arrow, the result has the letters that occur once, sorted."""
        tensors = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], list | tuple) else list(operands)
        check_formula("einsum", formula)
        inputs, output = split_formula(formula, len(tensors))
        check_devices("einsum", *tensors)
        wanted = promote(*(tensor.dtype for tensor in tensors)) if dtype is None else to_dtype(dtype)
        carrier = accumulate_dtype(wanted)
        terms = [
            diagonals(formula, Lettered(axis_names(formula, letters, tensor.ndim), build.cast(tensor.uop, carrier)))
            for letters, tensor in zip(inputs, tensors)
        ]
        sizes = sizes_of_names(formula, terms)
        result = output_names(formula, inputs, output, terms)
        total = terms[0]
        if len(terms) == 1:
            total = contract(total, None, frozenset(result), sizes, carrier)
        for number, term in enumerate(terms[1:], start=1):
            needed = frozenset(result).union(*(later.names for later in terms[number + 1 :]))
            total = contract(total, term, needed, sizes, carrier)
        order = tuple(total.names.index(name) for name in result)
        node = build.cast(build.permute(total.node, order), wanted)
        first: Self = tensors[0]
        return first._new(node, *tensors[1:])

    def rearrange(self, formula: str, **sizes: int) -> Self:
        """The axes permuted, split and merged as in einops: `rearrange("b (h w) c -> b c h w", h=8)`."""
        check_formula("rearrange", formula)
        left, arrow, right = formula.partition("->")
        if not arrow:
            raise ShapeError("rearrange", f"{formula!r} has no ->", 'write "axes before -> axes after"')
        before, after = (axis_groups(formula, side) for side in (left, right))
        before, after = self._with_ellipsis(formula, before, after)
        known = self._sizes_of_groups(formula, before, sizes)
        source = [name for group in before for name in group]
        target = [name for group in after for name in group]
        if sorted(source) != sorted(target):
            different = ", ".join(sorted(set(source) ^ set(target))) or "the same axis twice"
            message = f"{formula!r}: {different} on one side only"
            raise ShapeError("rearrange", message, "name the same axes on both sides, each once")
        apart = self.reshape(tuple(known[name] for name in source))
        moved = apart.permute(tuple(source.index(name) for name in target))
        return moved.reshape(tuple(math.prod(known[name] for name in group) for group in after))

    def _with_ellipsis(
        self, formula: str, before: list[list[str]], after: list[list[str]]
    ) -> tuple[list[list[str]], list[list[str]]]:
        """The groups with the ellipsis replaced by names for its axes."""
        if any(_JOINED in group for group in before):
            message = f"{formula!r} joins ... on the left, where its sizes are not known"
            raise ShapeError("rearrange", message, "use ( ) around ... on the right only")
        count = self.ndim - len(before) + (["..."] in before)
        if count < 0 or (["..."] not in before and count):
            message = f"{formula!r} names {len(before)} axes of shape {self.shape}"
            raise ShapeError("rearrange", message, "name every axis, or use ...")
        names = [f"...{number}" for number in range(count)]
        spread = []
        for side in (before, after):
            groups = []
            for group in side:
                if group == ["..."]:
                    groups += [[name] for name in names]
                else:
                    groups.append([part for name in group for part in (names if name == _JOINED else [name])])
            spread.append(groups)
        return spread[0], spread[1]

    def _sizes_of_groups(self, formula: str, groups: list[list[str]], sizes: dict[str, int]) -> dict[str, int]:
        names = {name for group in groups for name in group}
        for name in sizes:
            if name not in names:
                remedy = f"give sizes for {', '.join(sorted(names)) or 'nothing'}"
                raise ShapeError("rearrange", f"{formula!r} has no axis {name}", remedy)
        known = dict(sizes)
        for group, size in zip(groups, self.shape):
            missing = [name for name in group if name not in known]
            part = math.prod(known[name] for name in group if name in known)
            fits = part and size % part == 0 if missing else part == size
            if len(missing) > 1 or not fits:
                message = f"{formula!r}: ({' '.join(group)}) of an axis of size {size} with sizes {sizes}"
                raise ShapeError("rearrange", message, "give sizes that divide the axis, for all but one of its parts")
            if missing:
                known[missing[0]] = size // part
        return known

    def diag(self) -> Self:
        """A matrix with this vector on its diagonal, or the diagonal of this matrix."""
        if self.ndim == 2:
            return self.diagonal()
        if self.ndim != 1:
            raise ShapeError("diag", f"shape {self.shape}", "give a vector or a matrix; see diagonal for more axes")
        size = self.shape[0]
        if size == 0:
            return self.reshape(0, 0)
        rows, columns = (build.axis_iota((size, size), axis) for axis in (0, 1))
        spread = build.expand(build.reshape(self.uop, (size, 1)), (size, size))
        return self._new(build.where(rows.eq(columns), spread, build.const(self.dtype, 0)))

    def diag_embed(self) -> Self:
        """Matrices with the last axis on their diagonals."""
        if not self.ndim:
            raise ShapeError("diag_embed", "a 0-d tensor has no axis", "give a vector or rows of them")
        size = self.shape[-1]
        rows, columns = (self.arange(size, device=self.device).unsqueeze(axis) for axis in (1, 0))
        return rows.eq(columns).where(self.unsqueeze(-1), 0).cast(self.dtype)


# ---------------------------------------------------------------- einsum: reading the formula


def check_formula(operation: str, formula: object) -> None:
    if not isinstance(formula, str):
        raise ShapeError(operation, f"a formula of type {type(formula).__name__}", 'give a string such as "ij->ji"')


def split_formula(formula: str, count: int) -> tuple[list[str], str | None]:
    """The letters of each operand, and of the result where there is an arrow."""
    plain = formula.replace(" ", "")
    left, arrow, right = plain.partition("->")
    inputs = left.split(",")
    if len(inputs) != count or count == 0:
        message = f"{formula!r} has {len(inputs)} operands, {count} tensors were given"
        raise ShapeError("einsum", message, "separate the letters of the operands by commas, one group for each tensor")
    for part in (*inputs, right):
        rest = part.replace("...", "", 1)
        wrong = next((letter for letter in rest if not (letter.isascii() and letter.isalpha())), None)
        if wrong is not None:
            remedy = "use the letters a-z and A-Z, commas, one ... for each operand, and ->"
            raise ShapeError("einsum", f"{formula!r} holds {wrong!r}", remedy)
    return inputs, right if arrow else None


def axis_names(formula: str, letters: str, ndim: int) -> tuple[str, ...]:
    """A name for each axis of an operand."""
    before, dots, after = letters.partition("...")
    spread = ndim - len(before) - len(after)
    if spread < 0 or (spread and not dots):
        message = f"{letters!r} of {formula!r} names {len(before) + len(after)} axes of a tensor that has {ndim}"
        raise ShapeError("einsum", message, "give a letter for each axis, or ... for the others")
    return (*before, *(str(number) for number in reversed(range(spread))), *after)


def output_names(formula: str, inputs: list[str], output: str | None, terms: list[Lettered]) -> list[str]:
    spread = sorted({name for term in terms for name in term.names if name.isdigit()}, key=int, reverse=True)
    if output is None:
        letters = "".join(inputs).replace(".", "")
        return [*spread, *sorted(letter for letter in set(letters) if letters.count(letter) == 1)]
    before, dots, after = output.partition("...")
    for letter in before + after:
        if all(letter not in term.names for term in terms):
            message = f"the result of {formula!r} has {letter!r}, which no operand has"
            raise ShapeError("einsum", message, "use letters of the operands after ->")
    if len(set(before + after)) != len(before + after):
        raise ShapeError("einsum", f"the result of {formula!r} names an axis twice", "name each letter once after ->")
    return [*before, *(spread if dots else []), *after]


def sizes_of_names(formula: str, terms: list[Lettered]) -> dict[str, int]:
    """The size of each axis; size 1 broadcasts."""
    sizes: dict[str, int] = {}
    for term in terms:
        for name, size in zip(term.names, term.node.shape):
            known = sizes.setdefault(name, size)
            if known == 1:
                sizes[name] = size
            elif size not in (1, known):
                axis = "an axis of ..." if name.isdigit() else repr(name)
                message = f"{formula!r}: {axis} has sizes {known} and {size}"
                raise ShapeError("einsum", message, "make the sizes of a letter equal, or 1")
    return sizes


# ---------------------------------------------------------------- einsum: computing


def diagonals(formula: str, term: Lettered) -> Lettered:
    """An operand with each repeated letter replaced by the diagonal of its axes."""
    for name in term.names:
        while term.names.count(name) > 1:
            first = term.names.index(name)
            second = term.names.index(name, first + 1)
            shape = term.node.shape
            if shape[first] != shape[second]:
                message = f"{formula!r}: {name!r} has sizes {shape[first]} and {shape[second]} in one operand"
                raise ShapeError("einsum", message, "make the sizes of a letter equal")
            on_diagonal = build.axis_iota(shape, first).eq(build.axis_iota(shape, second))
            kept = build.where(on_diagonal, term.node, build.const(term.node.dtype, 0))
            # The diagonal as a masked sum: elements off the diagonal are 0.
            picked = build.reduce_axis(Ops.ADD if not kept.dtype.is_bool else Ops.MAX, kept, (second,))
            term = Lettered(
                term.names[:second] + term.names[second + 1 :],
                build.reshape(picked, shape[:second] + shape[second + 1 :]),
            )
    return term


def contract(
    left: Lettered, right: Lettered | None, needed: frozenset[str], sizes: dict[str, int], dtype: DType
) -> Lettered:
    """The product of two operands (or one operand), summed over the axes that are not used afterwards."""
    present = list(dict.fromkeys((*left.names, *(right.names if right else ()))))
    kept = [name for name in present if name in needed]
    summed = [name for name in present if name not in needed]
    order = kept + summed
    shape = tuple(sizes[name] for name in order)
    axes = range(len(kept), len(order))
    wide = _spread(left, order, shape)
    if right is None:
        node = build.reduce_axis(Ops.ADD if not dtype.is_bool else Ops.MAX, build.cast(wide, dtype), axes)
    else:
        node = multiply_and_sum(wide, _spread(right, order, shape), axes, dtype)
    return Lettered(tuple(kept), build.reshape(node, shape[: len(kept)]))


def _spread(term: Lettered, order: list[str], shape: tuple[int, ...]) -> UOp:
    """The operand with its axes in order, and missing axes inserted and expanded."""
    own = [name for name in order if name in term.names]
    moved = build.permute(term.node, tuple(term.names.index(name) for name in own))
    sizes = dict(zip(own, moved.shape))
    return build.expand(build.reshape(moved, tuple(sizes.get(name, 1) for name in order)), shape)


# ---------------------------------------------------------------- rearrange


def axis_groups(formula: str, side: str) -> list[list[str]]:
    """The axes of one side of the arrow, each a list of names; `1` and `()` have none."""
    groups: list[list[str]] = []
    inside: list[str] | None = None
    for token in re.findall(r"[()]|[^\s()]+", side.replace("…", "...")):
        if token == "(" and inside is None:
            inside = []
        elif token == ")" and inside is not None:
            groups.append(inside)
            inside = None
        elif token in ("...", "1") or (token.isidentifier() and token == token.strip("_")):
            names = [] if token == "1" else [token]
            if inside is None:
                groups.append(names)
            else:
                inside += [_JOINED] if token == "..." else names
        else:
            remedy = "use 1, ..., ( and ), and names that neither begin nor end with _, with spaces between them"
            raise ShapeError("rearrange", f"{token!r} in {formula!r}", remedy)
    names = [name for group in groups for name in group]
    if inside is not None or len(set(names)) != len(names):
        problem = "a ( without its )" if inside is not None else "an axis named twice"
        raise ShapeError("rearrange", f"{formula!r} has {problem}", "close every ( and name each axis once")
    return groups
