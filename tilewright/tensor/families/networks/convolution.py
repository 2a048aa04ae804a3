"""Convolutions. In: tensors of (batch, channels, *space) and weights. Out: tensors with other space sizes. A
convolution is a sum of products over windows, or on cores of products of pixels with taps (`tap_products.py`); a
transposed convolution is one ordinary convolution per phase (`phases.py`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self, TypeVar

from tilewright.base.costs import memory_clocks
from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import ShapeError
from tilewright.base.records import record
from tilewright.graph import build, marks
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Devices, Shape
from tilewright.graph.uop import UOp
from tilewright.runtime.device import open_driver
from tilewright.tensor.core import nodes
from tilewright.tensor.core.base import check_devices
from tilewright.tensor.core.checks import check_whole
from tilewright.tensor.core.gradient import Flow
from tilewright.tensor.families.linalg.products import ProductsMixin
from tilewright.tensor.families.networks.phases import (
    Phases,
    interleave,
    moved_by,
    phase_weight,
    phases_of,
    stored_with_gradient,
)
from tilewright.tensor.families.networks.tap_products import is_less_by_taps, products_of_taps, sum_of_windows
from tilewright.tensor.families.networks.window_products import WindowsGradient, windows_product
from tilewright.tensor.families.networks.windows import Sizes, check_windows, pads_of, sizes_of

# From this many products per element of the image on, its phases are stored before they are convolved: a depthwise
# convolution 5x5 at stride 2 has 6; 3x3 at stride 2 has 2 and is faster without.
MIN_REUSE = 6
# With more channels for each output a product packs the elements of windows, wherever they are.
FEW_CHANNELS = 16
# Elements of windows for each element of the image from which on their gradients are not stored by tensor cores.
MIN_WINDOW_ELEMENTS = 3
# On tensor cores: bytes of a vector of channels, how often each element is multiplied where a copy of the image pays,
# and the channels for each one that is added.
VECTOR_BYTES = 16
MIN_USES = 128
MIN_CHANNELS_TO_ADD = 3
# With fewer outputs tiles of tensor cores are mostly empty; and the pixels of a thread that then has all outputs.
MIN_OUTPUTS = 16
TILE_PIXELS = 4
if TYPE_CHECKING:
    Mixin = TypeVar("Mixin", bound="ConvolutionMixin")


class ConvolutionMixin(ProductsMixin):
    """conv2d, conv_transpose2d."""

    def conv2d(
        self,
        weight: Self,
        bias: Self | None = None,
        groups: int = 1,
        stride: Sizes = 1,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        dtype: DType | str | None = None,
    ) -> Self:
        """(batch, channels, *space) with weight (out, channels/groups, *kernel), over any number of space axes."""
        space = self._space_of("conv2d", weight, bias, groups, is_transposed=False)
        outputs, inputs, *kernel = weight.shape
        steps = sizes_of("conv2d", "stride", stride, space)
        gaps = sizes_of("conv2d", "dilation", dilation, space)
        result, carrier = self._product_dtypes("conv2d", weight, dtype)
        pads = pads_of("conv2d", padding, space)
        if groups == 1 and self._has_few_taps(weight, steps):
            around = [size + before + after for size, (before, after) in zip(self.shape[2:], pads)]
            check_windows("conv2d", tuple(around), tuple(kernel), gaps)
            product = self._summed_taps(weight, gaps, pads, result, carrier)
            return product if bias is None else product + with_channels(bias, "conv2d", outputs, space)
        if max(steps) == 1 and (by_taps := self._product_of_taps(weight, groups, gaps, pads, (result, carrier))):
            gradient = WindowsGradient(groups, gaps, pads, (result, carrier))
            product = self._new(marks.with_gradient(by_taps, gradient, self.uop, weight.uop), weight)
            return product if bias is None else product + with_channels(bias, "conv2d", outputs, space)
        image, taps = self.uop, weight.uop
        if groups == 1 and (more := self._missing_channels(weight, steps)):
            image, taps = (build.contiguous(nodes.pad_axis(each, 1, 0, more)) for each in (image, taps))
            inputs += more
        padded = build.cast(build.pad(image, ((0, 0), (0, 0), *pads)), carrier)
        check_windows("conv2d", padded.shape[2:], tuple(kernel), gaps)
        is_phased = groups == 1 and self._has_phased_gradient(kernel, steps)
        if inputs <= FEW_CHANNELS and not is_phased and outputs // groups * math.prod(kernel) >= MIN_REUSE:
            padded, steps, gaps = without_divisors(padded, kernel, steps, gaps)
        if is_split_by_stride(groups, weight.shape, steps, gaps):
            product = self._summed_phases(weight, padded, steps, dtype)
            return product if bias is None else product + with_channels(bias, "conv2d", outputs, space)
        node = windows_product(padded, taps, groups, steps, gaps, (result, carrier))
        if is_phased:
            rule = PhasedGradient(type(self), self.device, steps, gaps, pads, (result, carrier))
            node = marks.with_gradient(node, rule, image, taps)
        product = self._new(node, weight)
        return product if bias is None else product + with_channels(bias, "conv2d", outputs, space)

    def _has_phased_gradient(self, kernel: Sequence[int], steps: Sequence[int]) -> bool:
        """Whether the gradient of the image is a transposed convolution. Otherwise, with a stride, tensor cores store
        the gradients of all windows, which are then summed."""
        is_overlapping = math.prod(kernel) > MIN_WINDOW_ELEMENTS * math.prod(steps) > MIN_WINDOW_ELEMENTS
        if not is_overlapping or not isinstance(self.device, str) or is_symbolic(self.shape) or 0 in self.shape:
            return False
        return any(core.operand is self.dtype for core in open_driver(self.device).target.tensor_cores)

    def _missing_channels(self, weight: Self, steps: Sequence[int]) -> int:
        """Channels of zeros with which the windows of an image are whole vectors along the channels, as tensor cores
        want them (schedule/fusion/operand_order.py); 0 where they are, where zeros would be many, or each element is
        used too rarely to copy it."""
        outputs, inputs, *kernel = weight.shape
        dtype = self.dtype
        if not isinstance(self.device, str) or is_symbolic(self.shape) or weight.dtype is not dtype:
            return 0
        uses = outputs * math.prod(kernel) // math.prod(steps)
        more = -inputs % (VECTOR_BYTES // dtype.itemsize)
        if math.prod(kernel) == 1 or uses < MIN_USES or more * MIN_CHANNELS_TO_ADD > inputs:
            return 0
        cores = open_driver(self.device).target.tensor_cores
        return more if any(core.operand is dtype and core.wants_vectors for core in cores) else 0

    def _has_few_taps(self, weight: Self, steps: Sequence[int]) -> bool:
        """Whether it takes less time to multiply every pixel with all taps as one matrix product, which is stored, than
        to load a tap and an element of a window for each product: tiles of tensor cores would be mostly empty. The
        products of a pixel are no more than its channels. With one output the gradient of the weight is a sum along
        memory, and no product."""
        outputs, inputs, *kernel = weight.shape
        taps = outputs * math.prod(kernel)
        if not isinstance(self.device, str) or is_symbolic(self.shape) or is_symbolic(weight.shape):
            return False
        if math.prod(steps) > 1 or not 1 < outputs < MIN_OUTPUTS or taps == outputs or taps > inputs:
            return False
        target = open_driver(self.device).target
        pixels = self.shape[0] * math.prod(self.shape[2:])
        loads = pixels * taps * inputs * (1 / outputs + 1 / TILE_PIXELS)
        stored = memory_clocks(2 * pixels * taps * dtypes.float32.itemsize, target)
        is_faster = loads / (target.cores * target.warp_size) > stored + target.launch_clocks
        return bool(target.tensor_cores) and target.has_local and self.dtype.is_float and is_faster

    def _summed_taps(
        self, weight: Self, gaps: Sequence[int], pads: Sequence[tuple[int, int]], result: DType, carrier: DType
    ) -> Self:
        """A convolution of stride 1: the products of every pixel with all taps, summed over the channels, and for each
        result the sum of those of its window."""
        batch, inputs, *sizes = self.shape
        outputs, _, *kernel = weight.shape
        taps = weight.permute(0, *range(2, weight.ndim), 1).reshape(outputs * math.prod(kernel), inputs)
        products = taps.dot(self.reshape(batch, inputs, math.prod(sizes)), dtype=carrier)
        node = build.reshape(build.contiguous(products.uop), (batch, outputs, *kernel, *sizes))
        return self._new(build.cast(sum_of_windows(node, gaps, pads), result), weight)

    def _summed_phases(self, weight: Self, padded: UOp, steps: Sequence[int], dtype: DType | str | None) -> Self:
        """A strided depthwise convolution as the sum over phases of the image (positions with the same remainder modulo
        the stride) of convolutions of stride 1 with the taps of each phase."""
        result, carrier = self._product_dtypes("conv2d", weight, dtype)
        channels, _, *kernel = weight.shape
        sizes = [nodes.output_size(*each, 1) for each in zip(padded.shape[2:], kernel, steps)]
        for axis, step in enumerate(steps):
            place = 2 + 2 * axis
            padded = nodes.pad_axis(padded, place, 0, -padded.shape[place] % step)
            split = nodes.replace_axis(padded.shape, place, padded.shape[place] // step, step)
            padded = build.reshape(padded, split)
        count = len(steps)
        order = (0, 1, *range(3, 3 + 2 * count, 2), *range(2, 2 + 2 * count, 2))
        image = stored_with_gradient(build.permute(padded, order))
        total: Self | None = None
        for phase in itertools.product(*(range(min(step, k)) for step, k in zip(steps, kernel))):
            part, taps = image, weight.uop
            for axis, (number, step) in enumerate(zip(phase, steps)):
                part = nodes.slice_axis(part, 2 + axis, number, number + 1)
                taps = every_element(taps, 2 + axis, number, step)
            part = build.reshape(part, (*part.shape[:2], *part.shape[2 + count :]))
            for axis, (size, length) in enumerate(zip(sizes, taps.shape[2:]), start=2):
                part = nodes.slice_axis(part, axis, 0, size + length - 1)
            found = self._new(part).conv2d(self._new(taps, weight), None, channels, dtype=carrier)
            total = found if total is None else total + found
        assert total is not None  # every window has a tap
        return total.cast(result)

    def _space_of(self, name: str, weight: Self, bias: Self | None, groups: int, is_transposed: bool) -> int:
        """The number of space axes; raises an error where input and weight do not match."""
        check_devices(name, self, weight, *(() if bias is None else (bias,)))
        order = "in, out" if is_transposed else "out, in"
        if weight.ndim < 3 or self.ndim != weight.ndim:
            message = f"input {self.shape} and weight {weight.shape} have different numbers of axes"
            raise ShapeError(name, message, f"give (batch, channels, height, width) and ({order}, height, width)")
        check_whole(name, "groups", groups, least=1)
        channels = weight.shape[0] if is_transposed else weight.shape[1] * groups
        if weight.shape[0] % groups or self.shape[1] != channels:
            message = f"input {self.shape}, weight {weight.shape}, groups {groups}: channels do not match"
            remedy = f"give an input of {channels} channels"
            if weight.shape[0] % groups:
                remedy = f"give a weight whose first axis is a multiple of {groups}"
            raise ShapeError(name, message, remedy)
        return weight.ndim - 2

    def conv1d(
        self,
        weight: Self,
        bias: Self | None = None,
        stride: Sizes = 1,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
    ) -> Self:
        """As `conv2d`, with the arguments in torch's order."""
        return self.conv2d(weight, bias, groups, stride, dilation, padding)

    def conv_transpose2d(
        self,
        weight: Self,
        bias: Self | None = None,
        groups: int = 1,
        stride: Sizes = 1,
        dilation: Sizes = 1,
        padding: Sizes = 0,
        output_padding: Sizes = 0,
    ) -> Self:
        """The gradient of `conv2d` with respect to its input, as a layer: weight (in, out/groups, *kernel), over any
        number of space axes. `output_padding` adds elements at the end of each axis of the result."""
        name = "conv_transpose2d"
        space = self._space_of(name, weight, bias, groups, is_transposed=True)
        _, outputs, *kernel = weight.shape
        steps = sizes_of(name, "stride", stride, space)
        gaps = sizes_of(name, "dilation", dilation, space)
        pads = pads_of(name, padding, space)
        more = sizes_of(name, "output_padding", output_padding, space, least=0)
        axes, bounds = [], []
        for axis, (size, k, d, s, (before, after), extra) in enumerate(
            zip(self.shape[2:], kernel, gaps, steps, pads, more)
        ):
            if extra >= max(s, d):
                message = f"output_padding {extra} of axis {axis}, whose stride is {s} and dilation {d}"
                raise ShapeError(name, message, "give less than the stride or the dilation")
            stop = (size - 1) * s + d * (k - 1) + 1 + extra - after if size else d * (k - 1) + extra - after
            if stop <= before:
                message = f"padding {(before, after)} of axis {axis} removes all of {stop + after} results"
                raise ShapeError(name, message, "use less padding")
            axes.append(phases_of(size, k, s, d, (before, stop)))
            bounds.append((before, stop))
        result = self._new(self._interleaved(weight, groups, axes, bounds))
        return result if bias is None else result + with_channels(bias, name, outputs * groups, space)

    def _interleaved(self, weight: Self, groups: int, axes: list[Phases], bounds: list[tuple[int, int]]) -> UOp:
        """The results of a transposed convolution between bounds, from ordinary convolutions of its phases."""
        results = {}
        is_plain = all(phases.stride == 1 for phases in axes)
        for classes in itertools.product(*(phases.classes for phases in axes)):
            kernel = self._new(phase_weight(weight.uop, groups, axes, classes), weight)
            pads = [phases.around(chosen) for phases, chosen in zip(axes, classes)]
            found = self._convolved_phase(kernel, groups, tuple(phases.gap for phases in axes), pads)
            results[classes] = found if is_plain else stored_with_gradient(found)
        node = interleave(results, axes, groups * weight.shape[1])
        for axis, (phases, (start, stop)) in enumerate(zip(axes, bounds), start=2):
            dropped = phases.first * phases.stride
            node = nodes.pad_axis(node, axis, 0, max(0, stop - dropped - node.shape[axis]))
            node = nodes.slice_axis(node, axis, start - dropped, stop - dropped)
        return node

    def _convolved_phase(self, kernel: Self, groups: int, gaps: Sequence[int], pads: Sequence[tuple[int, int]]) -> UOp:
        """The convolution of a phase: of the padded input, or of products with taps where these take less time."""
        given = self._product_dtypes("conv_transpose2d", kernel, None)
        found = self._product_of_taps(kernel, groups, gaps, pads, given)
        if found is not None:
            return found
        image, around = self._padded_phase(kernel, groups, pads)
        return image.conv2d(kernel, None, groups, 1, tuple(gaps), around).uop

    def _product_of_taps(
        self,
        kernel: Self,
        groups: int,
        gaps: Sequence[int],
        pads: Sequence[tuple[int, int]],
        dtypes_of: tuple[DType, DType],
    ) -> UOp | None:
        """A convolution of stride 1 by products of pixels with taps; None where windows take less time."""
        if not isinstance(self.device, str) or is_symbolic((*self.shape, *kernel.shape)) or 0 in self.shape:
            return None
        target = open_driver(self.device).target
        if not is_less_by_taps(self.shape, kernel.shape, groups, gaps, pads, dtypes_of[1], target):
            return None
        return products_of_taps(self.uop, kernel.uop, groups, gaps, pads, dtypes_of, target)

    def _padded_phase(self, kernel: Self, groups: int, pads: Sequence[tuple[int, int]]) -> tuple[Self, Sizes]:
        """The input of the convolution of a phase, padded, and the padding that is left to that convolution: with few
        taps it pads their products."""
        has_few = groups == 1 and self._has_few_taps(kernel, (1,))
        left = [(max(0, before), max(0, after)) if has_few else (0, 0) for before, after in pads]
        image = self.uop
        for axis, ((before, after), (less, fewer)) in enumerate(zip(pads, left), start=2):
            image = moved_by(image, axis, before - less, after - fewer)
        return self._new(image), tuple(size for around in reversed(left) for size in around)


@record
class PhasedGradient:
    """The gradients of a convolution with a stride: that of the image is a transposed convolution."""

    kind: type[ConvolutionMixin]
    device: Devices
    steps: tuple[int, ...]
    gaps: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    dtypes: tuple[DType, DType]  # of the result, and of the products

    def __call__(self, upstream: UOp, image: UOp, taps: UOp) -> tuple[UOp, UOp]:
        own = marks.identical(taps)
        padded = build.cast(build.pad(image, ((0, 0), (0, 0), *self.pads)), self.dtypes[1])
        product = windows_product(padded, own, 1, self.steps, self.gaps, self.dtypes)
        of_taps = Flow(product, lambda inner: inner is own, stops=True).propagate(upstream)[own]
        return self._of_image(upstream, image, taps), of_taps

    def _of_image(self, upstream: UOp, image: UOp, taps: UOp) -> UOp:
        axes = zip(image.shape[2:], upstream.shape[2:], taps.shape[2:], self.steps, self.gaps, self.pads)
        more = tuple(
            size + before + after - (count - 1) * step - gap * (length - 1) - 1
            for size, count, length, step, gap, (before, after) in axes
        )
        around = tuple(size for pair in reversed(self.pads) for size in pair)
        given, weight = (self.kind._from_uop(node, self.device, False) for node in (upstream, taps))
        found = given.conv_transpose2d(weight, None, 1, self.steps, self.gaps, around, more)
        return build.cast(found.uop, image.dtype)


def with_channels(bias: Mixin, name: str, outputs: int, space: int) -> Mixin:
    """The bias along the axis of channels."""
    if bias.shape != (outputs,):
        raise ShapeError(name, f"bias {bias.shape} for {outputs} outputs", f"give a bias of shape ({outputs},)")
    return bias.reshape(1, outputs, *(1,) * space)


def is_split_by_stride(groups: int, weight: Shape, steps: Sequence[int], gaps: Sequence[int]) -> bool:
    """Whether this is a depthwise convolution with a stride whose windows overlap along every axis: elements at a
    stride cannot be vector loads, and no other channel reuses them."""
    is_apart = all(1 < step < length and gap == 1 for step, length, gap in zip(steps, weight[2:], gaps))
    is_reused = math.prod(weight[2:]) >= MIN_REUSE * math.prod(steps)
    return weight[0] == groups > 1 and weight[1] == 1 and is_apart and is_reused


def without_divisors(image: UOp, kernel: Sequence[int], steps: Shape, gaps: Shape) -> tuple[UOp, Shape, Shape]:
    """The image, strides and dilations of the same windows. Where stride and dilation of an axis have a common divisor,
    windows read nothing but the elements at its multiples: these are stored, so that neighbours are adjacent."""
    divisors = [math.gcd(step, gap) if k > 1 else 1 for k, step, gap in zip(kernel, steps, gaps)]
    if max(divisors) == 1 or is_symbolic(image.shape) or 0 in image.shape:
        return image, steps, gaps
    for axis, divisor in enumerate(divisors, start=2):
        image = every_element(image, axis, 0, divisor)
    steps, gaps = (tuple(size // divisor for size, divisor in zip(sizes, divisors)) for sizes in (steps, gaps))
    return stored_with_gradient(image), steps, gaps


def every_element(node: UOp, axis: int, start: int, step: int) -> UOp:
    """Elements start, start + step, ... of one axis."""
    count = -(-(node.shape[axis] - start) // step)
    node = nodes.slice_axis(node, axis, start, node.shape[axis])
    node = nodes.pad_axis(node, axis, 0, count * step - node.shape[axis])
    node = build.reshape(node, nodes.replace_axis(node.shape, axis, count, step))
    first = nodes.slice_axis(node, axis + 1, 0, 1)
    return build.reshape(first, (*first.shape[: axis + 1], *first.shape[axis + 2 :]))
