"""`Tensor`, the public class: all families of operations put together. In: host data. Out: a lazy tensor on a device.
Construction, assignment, moving between devices, and the modes of training stand here. The families that few
programs use (`rare`) are loaded when one of their operations is first asked for."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tilewright.base.dtype import DType, dtype_of_scalar, to_dtype
from tilewright.base.errors import DTypeError
from tilewright.base.forks import renewed_lock
from tilewright.engine.memory import live
from tilewright.graph import build, marks
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Devices
from tilewright.graph.symbolic import SymbolicInt
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import from_host, from_shared
from tilewright.runtime.device import canonical_device, is_file_device
from tilewright.tensor.core.arguments import accept_spellings, explain_arguments
from tilewright.tensor.core.base import TensorBase
from tilewright.tensor.core.checks import WIDER_DTYPE, check_holds
from tilewright.tensor.core.convert import (
    HostData,
    first_leaf,
    from_array,
    from_arrays,
    from_bytes,
    from_lists,
    is_array,
)
from tilewright.tensor.core.files import map_file
from tilewright.tensor.core.graph_memo import remember_graphs
from tilewright.tensor.core.memory import first_device, protect_borrowed
from tilewright.tensor.core.modes import Mode, modes
from tilewright.tensor.families.aliases import add_aliases
from tilewright.tensor.families.base import Family
from tilewright.tensor.families.custom import CustomMixin
from tilewright.tensor.families.in_place import InPlaceMixin
from tilewright.tensor.families.interop import InteropMixin
from tilewright.tensor.families.networks.attention import AttentionMixin
from tilewright.tensor.families.pointwise import PointwiseMixin
from tilewright.tensor.families.stacking import StackingMixin

if TYPE_CHECKING:
    from tilewright.tensor.rare import RareMixin
else:

    class RareMixin(Family):
        """The substitute for the families of `rare` until they are loaded."""


C = TypeVar("C", bound=Family)


def _cast_to(name: str) -> Callable[[C], C]:
    def cast(self: C) -> C:
        return self.cast(name)

    cast.__doc__ = f"Cast to {name}."
    return cast


class CastMixin(Family):
    """Casts under the names of dtypes."""

    bfloat16 = _cast_to("bfloat16")
    bool = _cast_to("bool")
    byte = _cast_to("uint8")
    char = _cast_to("int8")
    double = _cast_to("float64")
    float = _cast_to("float32")
    half = _cast_to("float16")
    int = _cast_to("int32")
    long = _cast_to("int64")
    short = _cast_to("int16")

    def type(self, dtype: Any) -> Self:
        """As `cast`."""
        return self.cast(dtype)


class _TensorType(type):
    """Makes `Tensor.training` a flag of the thread that can be read and set."""

    @property
    def training(cls) -> bool:
        return modes.training

    @training.setter
    def training(cls, value: bool) -> None:
        modes.training = bool(value)

    if not TYPE_CHECKING:

        def __getattr__(cls, name: str) -> Any:
            """A name that no loaded family has."""
            if not name.startswith("__"):
                _load_rare_families()
            return type.__getattribute__(cls, name)

        def __dir__(cls) -> list[str]:
            _load_rare_families()
            return super().__dir__()


class Tensor(
    RareMixin,
    AttentionMixin,
    PointwiseMixin,
    StackingMixin,
    InPlaceMixin,
    CastMixin,
    InteropMixin,
    CustomMixin,
    metaclass=_TensorType,
):
    """An n-dimensional array whose operations build a graph; values are computed when they are needed.

    `data` is a number, a bound `Variable`, nested lists of numbers, tensors or arrays, a NumPy array, bytes, a
    memoryview or the path of a file (`pathlib.Path`), which is uint8 unless `dtype` is given, and is read when it is
    needed, and only where. The tensor has the values that an array has now. With `copy=False` (and
    `Tensor.from_numpy`) the memory of an array, of bytes or of a memoryview is read in place, where the device can: it
    is never written to, and should not change while tensors made from it are in use."""

    def __init__(
        self,
        data: Any,
        device: Devices | None = None,
        dtype: DType | str | None = None,
        requires_grad: bool | None = None,
        copy: bool = True,
    ) -> None:
        wanted = None if dtype is None else to_dtype(dtype)
        given = data
        if isinstance(data, os.PathLike):
            data = type(self)._from_uop(*map_file(os.fspath(data), wanted))
        if isinstance(device, str) and is_file_device(canonical_device(device)):
            data = (data if isinstance(data, Tensor) else type(self)(data, dtype=dtype)).to(device)
        if isinstance(data, UOp):
            data = type(self)._from_uop(data, build.device_of(data) or canonical_device(device))
        if isinstance(data, TensorBase):
            device = data.device if device is None else canonical_device(device)
            node = marks.detach(data.uop) if data.requires_grad else data.uop
            node = node if device == data.device or build.is_everywhere(node) else build.copy(node, device)
            if data is given and is_file_device(device):
                # Of two tensors that are one file, an update of one would take it from the other.
                node = UOp(Ops.CONTIGUOUS, node.dtype, (node,))
        else:
            device = canonical_device(device)
            node = _node_from(data, first_device(device), wanted, copy)
            node = node if isinstance(device, str) or build.is_everywhere(node) else build.copy(node, device)
        self._set_up(node if wanted is None else build.cast(node, wanted), device, False)
        self._told(requires_grad)

    @classmethod
    def from_numpy(cls, array: Any, device: Devices | None = None) -> Self:
        """A tensor of the memory of a NumPy array, without a copy where the device can read it. It is never written
        to, and should not change while tensors made from it are in use; `Tensor(array)` copies."""
        if not hasattr(array, "__array_interface__"):
            message = f"a {type(array).__name__} is not a NumPy array"
            raise DTypeError("from_numpy", message, "use Tensor(...) for other data, or from_dlpack")
        device = canonical_device(device)
        if array.flags.c_contiguous or not isinstance(device, str):
            return cls(array, device=device, copy=False)
        return cls.from_dlpack(array, device)

    @classmethod
    def from_url(cls, url: str, gunzip: bool = False, progress: bool = True, **kwargs: Any) -> Self:
        """The bytes of a file, `https:`, `http:` or `file:`, as one row of uint8; the further arguments are those of
        `Tensor`. What came over the network is kept in the cache folder, and later calls read that copy."""
        if not isinstance(url, str):
            raise DTypeError(
                "from_url", f"a {type(url).__name__} is not an address", "give a string such as 'https://...'"
            )
        from tilewright.runtime.download import read_address  # loads what few programs need

        return cls(read_address("from_url", url, gunzip, progress), **kwargs)

    def _tensor(self, data: Any) -> Self:
        if not is_file_device(self.device):
            return super()._tensor(data)
        # An operand of what lies in a file does not belong in that file.
        return self._from_uop(_node_from(data, first_device(self.device), None, copy=True), self.device)

    def __iter__(self) -> Iterator[Self]:
        return (self[position] for position in range(len(self)))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A name that no loaded family has. Where a property has failed, it fails again with what it said."""
            if not name.startswith("__"):
                _load_rare_families()
            return object.__getattribute__(self, name)

        def __dir__(self) -> list[str]:
            _load_rare_families()
            return list(super().__dir__())

        def __init_subclass__(cls, **settings: Any) -> None:
            super().__init_subclass__(**settings)
            _load_rare_families()  # `super()` looks at the bases alone

    # ------------------------------------------------------------ modes

    @staticmethod
    def no_grad() -> Mode:
        """Results need no gradient inside: `with Tensor.no_grad():` or `@Tensor.no_grad()`."""
        return Mode("grad_enabled", False)

    @staticmethod
    def train(mode: bool = True) -> Mode:
        """Dropout and batch norm behave as in training inside: `with Tensor.train():` or `@Tensor.train()`."""
        return Mode("training", mode)

    def sequential(self, ll: Sequence[Callable[[Any], Any]]) -> Any:
        """The functions applied one after another."""
        return functools.reduce(lambda value, function: function(value), ll, self)


def _node_from(data: Any, device: str, dtype: DType | None, copy: bool) -> UOp:
    """The node of host data: a constant for a number, else a buffer with its bytes."""
    if type(data) in (bool, int, float, SymbolicInt):  # NumPy's float64 is a float too, but has a dtype to keep
        wanted = dtype or dtype_of_scalar(data)
        return build.const(wanted, check_holds("Tensor", wanted, data, WIDER_DTYPE))
    if isinstance(data, list | tuple):
        first = first_leaf(data)
        if isinstance(first, TensorBase):
            return _stacked(data).uop
        holds_arrays = is_array(first) and getattr(first, "ndim", 0) > 0
        found = from_arrays(data) if holds_arrays else from_lists(data, dtype)
    elif isinstance(data, bytes | bytearray | memoryview):
        found = from_bytes(data, dtype)
    elif is_array(data):
        found = from_array(data)
    else:
        message = f"a {type(data).__name__} holds no numbers"
        raise DTypeError("Tensor", message, "give a number, nested lists, a NumPy array, bytes or a memoryview")
    if not copy and not found.is_shared:
        message = f"copy=False, but the elements of this {type(data).__name__} do not lie in memory as a tensor's do"
        raise DTypeError("Tensor", message, "leave out copy=False, or give a row-major NumPy array")
    return _node_of_bytes(found, device, copy)


def _node_of_bytes(found: HostData, device: str, copy: bool) -> UOp:
    count = math.prod(found.shape)
    if count == 0:
        return build.const(found.dtype, 0, found.shape)
    is_copied = copy and found.can_change
    make = from_shared if found.can_change and not copy else from_host
    node = make(found.buffer, device, found.dtype, count, borrow=not is_copied)
    if found.is_shared and not is_copied:
        protect_borrowed(node)
    if found.limits is not None and (is_copied or not found.can_change):
        node.cache["limits"] = found.limits
    return build.reshape(node, found.shape)


def _stacked(data: Any) -> Tensor:
    """Nested lists of tensors as one tensor."""
    parts = [entry if isinstance(entry, Tensor) else _stacked(entry) for entry in data]
    return parts[0].stack(*parts[1:])


def _add_operations(owner: type, kinds: Iterable[type]) -> None:
    """What operations of these bases of a class have in common: other names, other spellings of arguments, errors."""
    names = {name for kind in kinds for name in vars(kind)}
    names.update(add_aliases(owner, names))
    remember_graphs(owner, names)
    explain_arguments(owner, names)
    accept_spellings(owner, names)


_loading = renewed_lock()


def _load_rare_families() -> None:
    """Puts the families of `rare` where their substitute is, once."""
    with _loading:
        first, *others = Tensor.__bases__
        if first is RareMixin:
            from tilewright.tensor.rare import RareMixin as families

            # Complete before it becomes a base, where other threads find it.
            _add_operations(families, set(families.__mro__).difference(Tensor.__mro__))
            Tensor.__bases__ = (families, *others)


_add_operations(Tensor, Tensor.__mro__)
live.configure(Tensor, Tensor._from_memory, Tensor._from_parts, modes)
