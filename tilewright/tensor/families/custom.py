"""Custom kernels. In: tensors and a function that builds a kernel over them. Out: new tensors with the kernel's
results, lazy like any others: they are scheduled, differentiated and jitted with the rest of the graph. The language of
kernels is in `graph/kernels/language/language.py`; docs/custom_kernels.md shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from tilewright.base.errors import KernelError, ShapeError, UnsupportedError
from tilewright.base.records import record, replace
from tilewright.engine.memory.parts import layout_of
from tilewright.graph import build
from tilewright.graph.kernels.custom import CustomKernel, arguments_used, check_kernel, output_node
from tilewright.graph.kernels.language.language import make_argument
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.slices import bounds_of, slice_axis
from tilewright.graph.spec import Devices
from tilewright.graph.uop import UOp
from tilewright.tensor.core.base import TensorBase, check_devices
from tilewright.tensor.core.memory import Layout, holds_nothing
from tilewright.tensor.families.base import Family


class CustomMixin(Family):
    """custom_kernel."""

    def custom_kernel(
        self, *others: Self, fxn: Callable[..., UOp], grad_fxn: Callable[..., Any] | None = None
    ) -> list[Self]:
        """The tensors after a kernel, outputs first: `out = Tensor.custom_kernel(out, x, fxn=row_sum)[0]`.

        `fxn` is called once with a UOp for each tensor and returns the kernel. Written arguments are returned as new
        tensors; the given tensors keep their values. The kernel must write every element of an output made with
        `Tensor.empty`; in any other output, elements that it does not write keep their value. `grad_fxn(gradient,
        *tensors)` takes the gradient of the output (a list where there are several) and the returned tensors, and
        returns a gradient or None for each argument of `custom_kernel`. That includes arguments which the kernel does
        not use.

        Where tensors are on several devices, each device runs the kernel on its shards: `fxn` builds a kernel for the
        shapes of the shards, and `grad_fxn` is called with the shards."""
        tensors = (self, *others)
        name = getattr(fxn, "__name__", "custom_kernel")
        check_devices("custom_kernel", *tensors)
        if not isinstance(self.device, str):
            return self._custom_kernels(name, tensors, self.device, fxn, grad_fxn)
        if any(is_symbolic(tensor.shape) for tensor in tensors):
            message = f"{name} is given shapes {', '.join(str(tensor.shape) for tensor in tensors)}, with variables"
            raise UnsupportedError("custom_kernel", message, "give it the whole tensor, or slices by int(...)")
        if any(0 in tensor.shape for tensor in tensors):
            message = f"{name} is given a tensor without elements"
            raise ShapeError("custom_kernel", message, "skip the kernel for empty tensors")
        arguments = tuple(make_argument(slot, each.dtype, each.shape) for slot, each in enumerate(tensors))
        ast = check_kernel(fxn(*arguments), arguments, name if name.isidentifier() else "custom_kernel")
        call = _make_call(ast, tensors, self._gradient_of(grad_fxn))
        sources = tuple(tensor.uop for tensor, position in zip(tensors, call.sources) if position is not None)
        results: list[Self] = list(tensors)
        for slot in call.written:
            node = UOp(Ops.CUSTOM_KERNEL, tensors[slot].dtype, sources, call._replace(output=slot))
            results[slot] = self._new(node, *others)
        return results

    def _custom_kernels(
        self,
        name: str,
        tensors: Sequence[Self],
        devices: tuple[str, ...],
        fxn: Callable[..., UOp],
        grad_fxn: Callable[..., Any] | None,
    ) -> list[Self]:
        """A kernel on each device, over its shards."""
        layouts = [layout_of(tensor.uop) for tensor in tensors]
        _check_divisions(name, tensors, layouts, devices)
        results: list[Self] = list(tensors)
        made: dict[int, list[UOp]] = {}
        for number, device in enumerate(devices):
            parts = [_part_of(tensor, layout, number) for tensor, layout in zip(tensors, layouts)]
            flags = [tensor.requires_grad for tensor in tensors]
            given = [self._from_uop(part, device, flag) for part, flag in zip(parts, flags)]
            for slot, after in enumerate(given[0].custom_kernel(*given[1:], fxn=fxn, grad_fxn=grad_fxn)):
                if after is not given[slot]:
                    made.setdefault(slot, []).append(after.uop)
        for slot, nodes in made.items():
            _check_output(name, slot, layouts)
            results[slot] = self._new(build.multi(nodes, layouts[slot][0], devices), *tensors[1:])
        return results

    def _gradient_of(self, function: Callable[..., Any] | None) -> TensorGradient | None:
        return None if function is None else TensorGradient(function, type(self), self.device)


def _part_of(tensor: TensorBase, layout: Layout, number: int) -> UOp:
    """The shard of a tensor on one device. Uninitialised memory stays marked as uninitialised."""
    root = build.stored_root(tensor.uop)
    if root.op is Ops.MULTI and root.shape == tensor.shape and holds_nothing(root):
        return root.src[number]
    axis, sizes = layout
    assert not isinstance(tensor.device, str)
    cut = tensor.uop if axis is None else slice_axis(tensor.uop, axis, *bounds_of(sizes)[number])
    return build.copy(cut, tensor.device[number])


def _check_divisions(
    name: str, tensors: Sequence[TensorBase], layouts: Sequence[Layout], devices: tuple[str, ...]
) -> None:
    """Raises an error unless every device has elements of every tensor, and all sharded tensors are sharded alike."""
    first: tuple[int, tuple[int, ...]] | None = None
    for slot, (tensor, (axis, sizes)) in enumerate(zip(tensors, layouts)):
        if axis is None:
            continue
        if 0 in sizes:
            message = f"{name} has no elements of tensor {slot}, shape {tensor.shape}, on {devices[sizes.index(0)]}"
            remedy = f"shard an axis of at least {len(devices)} elements, or use fewer devices"
            raise ShapeError("custom_kernel", message, remedy)
        if first is None:
            first = (slot, sizes)
        elif any(size * sum(first[1]) != own * sum(sizes) for size, own in zip(sizes, first[1])):
            message = f"{name} is given tensor {first[0]} sharded as {first[1]} and tensor {slot} as {sizes}"
            raise ShapeError("custom_kernel", message, "shard them alike, such as `y = y.shard_like(x)`")


def _check_output(name: str, slot: int, layouts: Sequence[Layout]) -> None:
    if layouts[slot][0] is None and any(axis is not None for axis, _ in layouts):
        message = f"{name} writes tensor {slot}, which is replicated on each device, from shards that differ"
        raise ShapeError("custom_kernel", message, "shard the output as well: `.shard(devices, axis)`")


def _make_call(ast: UOp, tensors: Sequence[TensorBase], gradient: TensorGradient | None) -> CustomKernel:
    read, written = arguments_used(ast)
    if not written:
        raise KernelError(ast.arg.name, "the kernel writes none of its arguments", "store to an output")
    fills = tuple(sorted(slot for slot in written if holds_nothing(tensors[slot].uop)))
    # Arguments that the kernel does not use are there for the gradient.
    touched = range(len(tensors)) if gradient is not None else read | written
    needed = [slot for slot in range(len(tensors)) if slot not in fills and slot in touched]
    sources = tuple(needed.index(slot) if slot in needed else None for slot in range(len(tensors)))
    return CustomKernel(
        ast.replace(arg=replace(ast.arg, fills=fills)),
        min(written),
        tuple(tensor.shape for tensor in tensors),
        tuple(tensor.dtype for tensor in tensors),
        tuple(sorted(written)),
        sources,
        gradient=gradient,
    )


@record
class TensorGradient:
    """A user's gradient function as a rule on nodes. Equal functions make equal rules and so the same node."""

    function: Callable[..., Any]
    tensor_type: type[Any]
    device: Devices

    def __call__(self, node: UOp, upstream: UOp) -> tuple[UOp | None, ...]:
        call: CustomKernel = node.arg
        gradients = [
            self._tensor(upstream if slot == call.output else build.const(call.dtypes[slot], 0, call.shapes[slot]))
            for slot in call.written
        ]
        found = self.function(gradients[0] if len(gradients) == 1 else gradients, *self._arguments(node))
        if isinstance(found, TensorBase) or found is None:
            found = (found,)
        if len(found) != len(call.sources):
            message = f"the gradient of {call.name} returns {len(found)} results for {len(call.sources)} tensors"
            raise UnsupportedError("grad_fxn", message, "return a gradient or None for each tensor", location=node.line)
        results: list[UOp | None] = [None] * len(node.src)
        for slot, (position, gradient) in enumerate(zip(call.sources, found)):
            if position is not None and gradient is not None:
                results[position] = self._checked(node, slot, gradient)
        return tuple(results)

    def _arguments(self, node: UOp) -> list[Any]:
        """The tensors after the kernel."""
        call: CustomKernel = node.arg
        found: list[Any] = []
        for slot, position in enumerate(call.sources):
            if slot in call.written:
                found.append(self._tensor(output_node(node, slot)))
            else:
                found.append(None if position is None else self._tensor(node.src[position]))
        return found

    def _tensor(self, node: UOp) -> Any:
        return self.tensor_type._from_uop(node, self.device, node.dtype.is_float)

    def _checked(self, node: UOp, slot: int, gradient: Any) -> UOp:
        call: CustomKernel = node.arg
        if not isinstance(gradient, TensorBase) or gradient.shape != call.shapes[slot]:
            shown = gradient._described() if isinstance(gradient, TensorBase) else type(gradient).__name__
            message = f"the gradient of {call.name} for tensor {slot} of shape {call.shapes[slot]} is {shown}"
            raise ShapeError("grad_fxn", message, "return a gradient of the shape of its tensor", location=node.line)
        return build.cast(gradient.uop, call.dtypes[slot])
