"""Graphs of operations, made again without the operations. In: an operation that makes the same graph for operands of
the same shapes, dtypes and devices, its operands, and a key of all else that it depends on. Out: its results.

    1st call    the operation is called
    2nd, 3rd    it is called, and its graph is taken as a function of the operands; the two have to be equal
    later       the function makes the nodes; the operation is not called

A call of `layer_norm` makes twelve tensors, each of which is checked, promoted and broadcast; the function makes its
nodes alone, in a tenth of the time. What is jitted is traced, and what is traced is called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Generic, TypeVar

from tilewright.base.config import options
from tilewright.base.dtype import DType, dtypes
from tilewright.base.forks import renewed_lock
from tilewright.base.location import user_location
from tilewright.base.records import NamedTuple
from tilewright.engine.execution.traces import is_traced
from tilewright.engine.memory import live
from tilewright.engine.recent import RecentTable
from tilewright.graph import build, marks
from tilewright.graph.functions import GraphFunction, function_of
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Devices, Kind
from tilewright.graph.symbolic import state as symbolic
from tilewright.graph.uop import UOp
from tilewright.tensor.core.base import TensorBase, leads_to
from tilewright.tensor.core.modes import modes

T = TypeVar("T", bound=TensorBase)
V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])

# Keys of calls for each schedule that may be kept.
CALLS_PER_PLAN = 32

# Results, and how they are arranged: whatever the caller needs, which equal calls have to agree on. None: the call is
# not to be remembered.
Built = tuple[Sequence[T], Any]


class _Graph(NamedTuple):
    """What an operation makes: its graph; how the results are arranged; the device of each and whether it requires a
    gradient; and of the values by number, the movements of operands that they stand for, as (value, operand, how far
    below it)."""

    function: GraphFunction
    form: Hashable
    results: tuple[tuple[Devices, bool], ...]
    past: tuple[tuple[int, int, int], ...]
    checked: int  # integers of operands that are known have to be below this, and not negative


class _Operands:
    """The nodes that a graph is a function of: what each operand is a movement or a cast of."""

    def __init__(self) -> None:
        self.arguments: list[UOp] = []
        self.chains: list[list[UOp]] = []  # of each operand: its node, and those below it, without the argument
        self.known: list[Sequence[int]] = []  # limits of integers that were made from host data
        self._numbers: dict[UOp, int] = {}

    def key_of(self, tensor: TensorBase) -> Hashable:
        """What the operation may see of an operand; None where its graph cannot be a function of it."""
        node: UOp = tensor.uop
        chain: list[UOp] = []
        moves: list[object] = []
        while node.op.kind is Kind.MOVEMENT or node.op is Ops.CAST:
            chain.append(node)
            moves.append((node.op, node.dtype, node.arg))
            node = node.src[0]
        shape = node.shape
        if symbolic.is_used and (is_symbolic(shape) or is_symbolic(tensor.shape)):
            return None
        if 0 in shape or tensor.device.__class__ is not str or tensor.__class__ is not live.tensor_kind.holder_type:
            return None
        self.chains.append(chain)
        if not node.src and node.op is not Ops.BUFFER:
            return (node, *moves)  # a constant is a part of the graph
        number = self._numbers.get(node)
        if number is None:
            number = self._numbers[node] = len(self.arguments)
            self.arguments.append(node)
        bounds = None
        if not node.dtype.is_float:
            bounds = node.bounds
            if node.op is Ops.BUFFER:
                self.known.append(node.cache.get("limits", ()))
        mark = None if node.op is not Ops.DETACH else (node.arg if isinstance(node.arg, str) else type(node.arg))
        return (number, node.op, mark, node.dtype, shape, tensor.device, tensor._requires_grad, bounds, *moves)


class Learned(Generic[V]):
    """What equal calls have in common: known after the third call, where the second and the third gave the same."""

    def __init__(self, per_plan: int) -> None:
        """`per_plan`: the keys that are kept for each schedule that may be."""
        self._lock = renewed_lock()  # for changes: the tables are looked up without it
        self._known: RecentTable[Hashable, V | None] = RecentTable(per_plan)
        self._called: RecentTable[Hashable, V | None] = RecentTable(per_plan)  # once, with None, or twice: what it gave

    def __getitem__(self, key: Hashable) -> V | None:
        """What is known; None where the calls gave nothing, or different things. KeyError where that is not known."""
        return self._known[key]

    def note(self, key: Hashable, give: Callable[[], V | None]) -> None:
        """After a call of a key that is not known. `give` is asked for what it gave, None where it gave nothing."""
        found = give() if key in self._called else None
        with self._lock:
            earlier = self._called.get(key)
            if key not in self._called or (found is not None and earlier is None):
                self._called[key] = found
                self._called.trim()
            else:
                self._called.discard(key)
                self._known[key] = found if found == earlier else None
                self._known.trim()


_graphs: Learned[_Graph] = Learned(CALLS_PER_PLAN)
_NO_LIMIT = 1 << 64


def may_remember() -> bool:
    """Whether graphs are made from functions. The call of a jitted function that is traced happens once, and guards on
    what it reads."""
    return bool(options.REMEMBER_GRAPHS) and not is_traced()


@functools.cache
def _options_reader() -> Callable[[], tuple[object, ...]]:
    """What reads the options that plans depend on. Importing the package does without it."""
    from tilewright.engine.compilation.stored import plan_options

    return plan_options


def surroundings() -> tuple[Hashable, ...]:
    """What any operation and any rule of a gradient may read besides its operands."""
    return modes.both, dtypes.default_float, _options_reader()()


def remembered(key: Hashable | None, operands: Sequence[T], operation: Callable[[], Built[T]]) -> Built[T]:
    """What an operation gives that depends on its operands and on what is in `key`, and on nothing else."""
    if key is None or not may_remember():
        return operation()
    inner = _Operands()
    parts: list[Hashable] = []
    for operand in operands:
        part = inner.key_of(operand)
        if part is None:
            return operation()
        parts.append(part)
    whole = (key, *surroundings(), *parts)
    try:
        graph = _graphs[whole]
    except KeyError:
        return _learn(whole, operands, inner, operation)
    if graph is None or any(known and not 0 <= known[0] <= known[-1] < graph.checked for known in inner.known):
        return operation()
    return _made(graph, operands, inner), graph.form


def _made(graph: _Graph, operands: Sequence[T], inner: _Operands) -> list[T]:
    """The results, over these operands."""
    line = user_location()
    values = graph.function.apply(inner.arguments, line)
    for number, operand, depth in graph.past:
        build.note_past(inner.chains[operand][depth], values[number])
    kind = type(operands[0])
    made = []
    for number, (device, requires_grad) in zip(graph.function.outputs, graph.results):
        node = values[number]
        if node.line is None:
            node.line = line
        elif node.dtype.is_float and not leads_to(node, *operands):
            node = marks.set_apart(node)  # some other tensor is, or was made from, an equal expression
        made.append(kind._from_uop(node, device, requires_grad))
    return made


def _learn(key: Hashable, operands: Sequence[T], inner: _Operands, operation: Callable[[], Built[T]]) -> Built[T]:
    """A call of an operation whose graph is not known yet."""
    nodes = [operand.uop for operand in operands]
    results, form = operation()

    def graph() -> _Graph | None:
        is_pure = form is not None and all(operand.uop is node for operand, node in zip(operands, nodes))
        return _graph_of(results, form, operands, inner) if is_pure else None

    _graphs.note(key, graph)
    return results, form


def _graph_of(
    results: Sequence[TensorBase], form: Hashable, operands: Sequence[TensorBase], inner: _Operands
) -> _Graph | None:
    """The graph of results as a function of the operands; None where one is something else, such as a view."""
    kind = type(operands[0])
    if any(type(result) is not kind or result._ancestors for result in results):
        return None
    found = function_of([result.uop for result in results], inner.arguments)
    if found is None or any(number < found[0].count + len(found[0].constants) for number in found[0].outputs):
        return None
    function, numbers = found
    depths = {node: (at, depth) for at, chain in enumerate(inner.chains) for depth, node in enumerate(chain)}
    merged = ((number, skipped) for node, number in numbers.items() for skipped in build.goes_past(node))
    past = tuple(sorted((number, *depths[skipped]) for number, skipped in merged if skipped in depths))
    checked = min((step.arg.size for step in function.steps if step.op is Ops.CHECK), default=_NO_LIMIT)
    facts = tuple((result.device, result._requires_grad) for result in results)
    return _Graph(function, form, facts, past, checked)


# ---------------------------------------------------------------- methods

_PRODUCTS = "linear dot matmul mm bmm addmm baddbmm outer scaled_dot_product_attention"
_WINDOWS = (
    "conv1d conv2d conv_transpose2d max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d "
    "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d interpolate pixel_shuffle"
)
_REDUCTIONS = (
    "mean var std var_mean std_mean argmax argmin logsumexp softmax log_softmax softmin layernorm batchnorm normalize"
)
_ELEMENTWISE = (
    "sigmoid tanh logsigmoid silu softplus mish elu celu selu gelu hardsigmoid hardswish quick_gelu glu exp log log1p "
    "expm1 sin cos pow erf rsqrt clamp clip lerp masked_fill"
)
_MOVEMENTS = "cat stack gather one_hot"
_LOSSES = (
    "binary_crossentropy binary_crossentropy_logits nll_loss cross_entropy sparse_categorical_crossentropy mse_loss "
    "l1_loss huber_loss smooth_l1_loss kl_div cosine_similarity"
)
# Methods that make several tensors on the way, and read no values, no random numbers and no memory but that of their
# operands.
REMEMBERED = frozenset(f"{_PRODUCTS} {_WINDOWS} {_REDUCTIONS} {_ELEMENTWISE} {_MOVEMENTS} {_LOSSES}".split())

_ONE = "one"


class _NotHashedError(Exception):
    """An argument that is neither a tensor nor a plain value."""


def remember_graphs(owner: type, names: Collection[str]) -> None:
    """Makes methods of a class build the graphs of equal calls once (`REMEMBERED`)."""
    for name in REMEMBERED.intersection(names):
        setattr(owner, name, remembering(getattr(owner, name)))


def remembering(method: F) -> F:
    """A method or a function of tensors that builds the graph of equal calls once."""

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        operands: list[TensorBase] = []
        try:
            key = (method, _key_of(args, operands), _key_of(tuple(kwargs.items()), operands) if kwargs else None)
        except _NotHashedError:
            return method(*args, **kwargs)

        def call() -> Built[TensorBase]:
            made = method(*args, **kwargs)
            if isinstance(made, TensorBase):
                return [made], _ONE
            is_plain = type(made) in (tuple, list) and all(isinstance(each, TensorBase) for each in made)
            return (made, type(made)) if is_plain else ([made], None)

        results, form = remembered(key if operands else None, operands, call)
        return results[0] if form is _ONE or form is None else form(results)

    return called  # type: ignore[return-value]


def _key_of(value: Any, operands: list[TensorBase]) -> Hashable:
    """An argument as a part of a key; a tensor becomes an operand."""
    kind = value.__class__
    if kind is int or kind is str or kind is bool or value is None:
        return kind, value
    if kind is float:
        return kind, value or repr(value)  # 0.0 and -0.0 are equal
    if isinstance(value, TensorBase):
        operands.append(value)
        return TensorBase
    if kind is tuple or kind is list:
        return (kind, *[_key_of(each, operands) for each in value])
    if isinstance(value, DType):
        return value
    raise _NotHashedError
