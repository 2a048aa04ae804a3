"""Which factors of a matrix product are packed, and at which loop. In: the loop nest of a product. Out: its STAGE opts.
`products` chooses the loops, and asks here which of them a packed panel must fit."""

from __future__ import annotations

import math

from tilewright.graph.kernels.threads import local_bytes
from tilewright.graph.ops import AxisType
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.analysis.dot_terms import product_dots, term_axis
from tilewright.kernel.analysis.versions import is_injective
from tilewright.kernel.axes import KernelView, stride
from tilewright.kernel.templates.measured import MAX_NEAR_STEP, MIN_PACKED_ROWS, WHOLE_SHARE
from tilewright.kernel.templates.product_match import Product, factors_of
from tilewright.kernel.templates.product_nest import Nest
from tilewright.kernel.transforms.stage import apply_stage, check_stage, operands


class PackedNest(Nest):
    def __init__(self, view: KernelView, product: Product, is_large: bool, packs_few: bool = False) -> None:
        """`is_large` says whether the product has enough multiplications for packing and threads to pay; `packs_few`
        that the right factor is packed for few rows too."""
        super().__init__(view)
        self.min_packed_rows = 1 if packs_few else MIN_PACKED_ROWS
        self.product = product
        self.is_large = is_large
        self.is_whole = False
        self.spill_loop: UOp | None = None  # the loop over blocks of a long sum, where accumulators are spilled
        self.depth = math.prod(size_of(axis) for axis in view.reduce_axes)
        self.itemsize = max(node.dtype.itemsize for node in (product.left, product.right, view.reduces[0]))
        dots = product_dots(view)
        self.dot = dots[0] if dots else None
        if self.dot is not None:
            self.itemsize = self.dot.instruction.left.itemsize

    @property
    def factors(self) -> tuple[UOp, UOp]:
        """The accesses of the left and the right factor, in the kernel as it is now."""
        accesses, number = factors_of(self.view), self.product.number
        return accesses[1 - number], accesses[number]

    def has_neighbouring_rows(self) -> bool:
        return stride(self.product.left, self.product.rows) == 1

    def _has_scattered_rows(self) -> bool:
        """Whether consecutive iterations of the sum read distant elements of the left factor: rows, not the sum, have
        stride 1, or some elements are masked."""
        return self.has_neighbouring_rows() or len(self.factors[0].src) > len(self.product.left.src)

    def is_left_converted(self) -> bool:
        """Whether elements are converted. Terms of a dot-product instruction are read in place at stride 1."""
        left = self.factors[0]
        if self.dot is None:
            return left.dtype is not self.view.reduces[0].dtype
        terms = term_axis(self.view, left)
        return terms is None or stride(left, terms) != 1 or left.dtype.itemsize != self.itemsize

    def is_left_packed_whole(self) -> bool:
        """Whether each core packs the whole left factor once, for all of its blocks of columns. Rows that are only
        converted are packed again for each block, from their narrower dtype."""
        others = [axis for axis in self.view.of_kind(AxisType.LOOP) if axis not in self.loops.values()]
        if others or "blocks of columns" not in self.loops or not self._has_scattered_rows():
            return False
        return WHOLE_SHARE * self.depth * size_of(self.product.rows) * self.itemsize <= self.target.max_local_bytes

    def stage(self) -> None:
        """Packs the right factor at the innermost loop outside the rows that it depends on, or before the loop over
        rows; and the left factor, where it is packed, at the rows or outside all blocks."""
        left, right = self.factors
        rows = self.loops.get("blocks of rows", self.loops.get("rows"))
        if rows is not None and (self._has_scattered_rows() or self.is_left_converted()):
            threads = self.view.of_kind(AxisType.THREAD) if self.is_whole else []
            self.pack(threads[0] if threads else rows, left)
        # With one tile of rows each element is used once, so that a panel gains nothing but its order.
        if self.has_strided_columns() or (rows is not None and self.is_right_packed()):
            loops = self.view.of_kind(AxisType.THREAD, AxisType.LOOP)
            outer = loops if rows is None else loops[: loops.index(rows)]
            around = [axis for axis in outer if axis in right.ranges or axis.arg.kind is AxisType.THREAD]
            chosen = [
                *([] if rows is None else [rows]),
                *around,
                *([] if self.spill_loop is None else [self.spill_loop]),
            ]
            if chosen:
                self.pack(chosen[-1], right)

    def has_strided_columns(self) -> bool:
        """Whether vectors of columns would be gathered. Overlapping windows at a small stride are shuffled out of
        contiguous loads instead, which costs less than a panel for a few rows."""
        step, is_few = stride(self.product.right, self.product.columns), size_of(self.product.rows) < MIN_PACKED_ROWS
        is_shuffled = step is not None and 0 < step <= MAX_NEAR_STEP
        return step != 1 and not (is_shuffled and is_few and not self._has_own_elements())

    def _has_own_elements(self) -> bool:
        """Whether different iterations of the sum and the columns read different elements of the right factor."""
        right = self.product.right
        summed = [axis for axis in self.view.reduce_axes if axis in right.ranges]
        return is_injective(right.src[1], [*summed, self.product.columns])

    def is_right_packed(self) -> bool:
        """Whether packing the right factor pays: its columns do not have stride 1, or it is reused often enough. Where
        its windows overlap, as in a convolution, a panel is larger than the data that it holds."""
        if self.has_strided_columns() or self.product.right.dtype is not self.view.reduces[0].dtype:
            return True
        is_used_often = self.is_large and size_of(self.product.rows) >= self.min_packed_rows
        return is_used_often and self._has_own_elements()

    def pack(self, axis: UOp, access: UOp) -> None:
        number = operands(self.view).index(access)
        if check_stage(self.view, axis, number) is None:
            made = apply_stage(self.view, axis, number)
            if local_bytes(made, self.target.warp_size) <= self.target.max_local_bytes:
                self.accept(OptOps.STAGE, axis, number, made)
