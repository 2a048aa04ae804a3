"""Custom kernels as values of a tensor graph. In: a user's kernel (a SINK) and tensors. Out: CUSTOM_KERNEL nodes, one
for each argument that the kernel writes: its contents after the kernel. `tensor/families/custom.py` makes them;
`schedule/` runs the nodes of one call as one kernel. A node's sources are the arguments that the kernel reads, or
overwrites in part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.base.dtype import DType
from tilewright.base.errors import KernelError, UnsupportedError
from tilewright.base.records import NamedTuple
from tilewright.graph.ops import Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Shape, element_count
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import toposort

Gradient = Callable[[UOp, UOp], tuple[UOp | None, ...]]
MAX_WRITTEN = 64  # cached kernels of one function


class CustomKernel(NamedTuple):
    """The argument of a CUSTOM_KERNEL. All fields but `output` are the same for all nodes of a call.

    `sources[k]` is the index of the source with argument k before the kernel; None where the kernel does not need it.
    `gradient` takes the node and the gradient of its value, and returns one for each source. `sizes` are the symbolic
    sizes whose variables the kernel uses. The `origin` of a kernel writes it for other sizes (`origin.py`)."""

    ast: UOp
    output: int
    shapes: tuple[Shape, ...]
    dtypes: tuple[DType, ...]
    written: tuple[int, ...]
    sources: tuple[int | None, ...]
    sizes: tuple[int, ...] = ()
    gradient: Gradient | None = None
    origin: Any = None

    @property
    def shape(self) -> Shape:
        return self.shapes[self.output]

    @property
    def name(self) -> str:
        return self.ast.arg.name if isinstance(self.ast.arg, KernelInfo) else "custom_kernel"


def output_node(node: UOp, output: int) -> UOp:
    """The node of another output of the same call."""
    arg: CustomKernel = node.arg
    made = UOp(Ops.CUSTOM_KERNEL, arg.dtypes[output], node.src, arg._replace(output=output))
    made.line = made.line or node.line
    return made


def without_gradient(node: UOp) -> CustomKernel:
    """The argument without its gradient, so that calls which differ in their gradients alone share a schedule."""
    arg: CustomKernel = node.arg
    return arg if arg.gradient is None else arg._replace(gradient=None)


def updated_source(node: UOp) -> UOp | None:
    """The node that an ASSIGN or a CUSTOM_KERNEL updates; None for any other node."""
    if node.op is Ops.ASSIGN:
        return node.src[0]
    if node.op is Ops.CUSTOM_KERNEL:
        position = node.arg.sources[node.arg.output]
        return None if position is None else node.src[position]
    return None


def arguments_used(ast: UOp) -> tuple[frozenset[int], frozenset[int]]:
    """The slots of the arguments that a kernel reads, and of those that it writes."""
    found: dict[object, set[int]] = {Ops.LOAD: set(), Ops.STORE: set()}
    for node in toposort(ast):
        if node.op is Ops.LOAD or node.op is Ops.STORE:
            memory = memory_of(node.src[0])
            if memory.op is Ops.PARAM:
                found[node.op].add(memory.arg.slot)
                if node.arg is not None:
                    found[Ops.LOAD].add(memory.arg.slot)
    return frozenset(found[Ops.LOAD]), frozenset(found[Ops.STORE])


class PureKernel:
    """A pure function that builds a kernel. Its result is cached by the shapes and dtypes of the arguments: a model
    calls the same few kernels hundreds of times, and building one takes milliseconds."""

    def __init__(self, function: Callable[..., UOp]) -> None:
        self.__name__ = function.__name__
        self._function = function
        self._written: dict[tuple[UOp, ...], UOp] = {}

    def __call__(self, *arguments: UOp) -> UOp:
        found = self._written.get(arguments)
        if found is None:
            if len(self._written) >= MAX_WRITTEN:
                self._written.clear()
            found = self._written[arguments] = self._function(*arguments)
        return found


def check_kernel(ast: object, arguments: tuple[UOp, ...], name: str) -> UOp:
    """The kernel that a user's function returned, checked to be one over these arguments."""
    if not isinstance(ast, UOp) or ast.op is not Ops.SINK:
        found = ast.op.name if isinstance(ast, UOp) else type(ast).__name__
        raise KernelError(name, f"the function returns {found}, not a kernel", "end it with .sink(arg=KernelInfo(...))")
    info = ast.arg if ast.arg is not None else KernelInfo()
    if not isinstance(info, KernelInfo):
        raise KernelError(
            name, f"arg={info!r} of the sink is not a KernelInfo", "give arg=KernelInfo(name, opts_to_apply)"
        )
    given = {memory_of(argument.src[0] if argument.op is Ops.RESHAPE else argument) for argument in arguments}
    for node in toposort(ast):
        if node.op is Ops.PARAM and node not in given:
            message = f"the kernel uses {node.dtype.name}[{node.arg.size}], which is none of its {len(given)} arguments"
            raise KernelError(name, message, "use the arguments of this call only", location=node.line)
    title = info.name or name
    if not (title.isascii() and title.isidentifier()):
        raise KernelError(name, f"{title!r} cannot name a kernel", "give KernelInfo(name=...) letters, digits and _")
    return ast.replace(arg=KernelInfo(title, info.opts_to_apply, streams=info.streams))


def check_custom_kernel(node: UOp) -> str | None:
    """The reason why the argument of a CUSTOM_KERNEL is malformed; None where it is not."""
    arg = node.arg
    if not isinstance(arg, CustomKernel) or arg.ast.op is not Ops.SINK:
        return f"argument {arg!r} is not a CustomKernel"
    if not len(arg.shapes) == len(arg.dtypes) == len(arg.sources) or arg.output not in arg.written:
        return f"the value {arg.output} is not written by {arg.name}"
    if node.dtype is not arg.dtypes[arg.output]:
        return f"is {node.dtype.name}, the kernel writes {arg.dtypes[arg.output].name}"
    for argument, position in enumerate(arg.sources):
        if position is None:
            continue
        if not 0 <= position < len(node.src):
            return f"argument {argument} is source {position}, which is not there"
        source = node.src[position]
        if source.dtype is not arg.dtypes[argument] or element_count(source.shape) != element_count(
            arg.shapes[argument]
        ):
            return f"argument {argument} is {source.dtype.name}{list(source.shape)}"
    return None


def custom_gradient(node: UOp, upstream: UOp) -> tuple[UOp | None, ...]:
    """The gradient rule: the user's, or an error that names the kernel."""
    gradient = node.arg.gradient
    if gradient is None:
        message = f"the custom kernel {node.arg.name} has no gradient"
        remedy = "give custom_kernel(..., grad_fxn=...), or detach() its arguments"
        raise UnsupportedError("gradient", message, remedy, location=node.line)
    found: tuple[UOp | None, ...] = gradient(node, upstream)
    return found
