"""Complex numbers as pairs of real tensors. In: a real and an imaginary part of one shape and float dtype. Out: a
tensor whose dtype is complex64 or complex128, with the operations that complex numbers have. The compiler has real
numbers only, so every operation is built from real ones, is lazy, and has gradients for both parts. Operations that are
not defined here are refused. Functions of one number are in functions.py."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from tilewright.base.dtype import DType, dtypes, promote
from tilewright.base.errors import DTypeError, UnsupportedError
from tilewright.graph.spec import Devices, Shape
from tilewright.graph.uop import UOp
from tilewright.tensor.complex import functions as complex_functions
from tilewright.tensor.core.base import TensorBase
from tilewright.tensor.core.checks import Axes
from tilewright.tensor.primitives.arithmetic import reflected
from tilewright.tensor.tensor import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

complex64 = DType("complex64", "complex", 64)
complex128 = DType("complex128", "complex", 128)
PART_DTYPES = {complex64: dtypes.float32, complex128: dtypes.float64}
COMPLEX_DTYPES = {part: whole for whole, part in PART_DTYPES.items()}
_BY_NAME = {"complex64": complex64, "complex128": complex128, "complex": complex128}


def complex_dtype(value: object) -> DType | None:
    """The complex dtype for a value (ours, NumPy's, torch's, a string, Python's `complex`), or None."""
    if isinstance(value, DType):
        return value if value in PART_DTYPES else None
    name = value.__name__ if isinstance(value, type) else str(getattr(value, "name", value)).removeprefix("torch.")
    return _BY_NAME.get(name)


def _of_parts(name: str) -> Callable[..., Any]:
    """A method that is applied to both parts."""

    def method(self: ComplexTensor, *args: Any, **kwargs: Any) -> Any:
        real, imag = (
            getattr(part, name)(*(_part(argument, k) for argument in args), **kwargs)
            for k, part in enumerate((self.real, self.imag))
        )
        if isinstance(real, tuple):
            return tuple(map(ComplexTensor, real, imag))
        return ComplexTensor(real, imag)

    method.__name__ = method.__qualname__ = name
    method.__doc__ = f"`Tensor.{name}`."
    return method


def _of_nonzero(name: str) -> Callable[..., Tensor]:
    """A method of `Tensor` applied to the mask of nonzero elements."""

    def method(self: ComplexTensor, *args: Any, **kwargs: Any) -> Tensor:
        return getattr(self.ne(0), name)(*args, **kwargs)  # type: ignore[no-any-return]

    method.__name__ = method.__qualname__ = name
    return method


def _part(argument: Any, number: int) -> Any:
    """The real or imaginary part of a complex argument, such as the other tensors of `cat` and `stack`."""
    if isinstance(argument, list | tuple):
        return type(argument)(_part(entry, number) for entry in argument)
    if not isinstance(argument, ComplexTensor):
        return argument
    return argument.imag if number else argument.real


class ComplexTensor(Tensor):
    """A tensor of complex numbers. `ComplexTensor(real, imag)` takes tensors or any argument of `Tensor`."""

    def __init__(self, real: Any, imag: Any = 0.0, device: Devices | None = None) -> None:
        parts = [part if isinstance(part, Tensor) else Tensor(part, device=device) for part in (real, imag)]
        dtype = promote(*(part.dtype if part.dtype.is_float else dtypes.float32 for part in parts))
        dtype = dtype if dtype is dtypes.float64 else dtypes.float32
        shape = parts[0].shape if parts[0].shape == parts[1].shape else (parts[0] + parts[1]).shape
        self._real, self._imag = (part.cast(dtype).expand(shape) for part in parts)
        self.device = self._real.device

    # ------------------------------------------------------------ facts

    @property
    def uop(self) -> UOp:  # type: ignore[override]
        message = "this operation is defined for real numbers only"
        raise UnsupportedError("complex", message, "use the parts, `.real` and `.imag`")

    @property
    def real(self) -> Tensor:
        """The real part."""
        return self._real

    @property
    def imag(self) -> Tensor:
        """The imaginary part."""
        return self._imag

    @property
    def shape(self) -> Shape:
        return self._real.shape

    @property
    def ndim(self) -> int:
        return self._real.ndim

    @property
    def dtype(self) -> DType:
        return COMPLEX_DTYPES[self._real.dtype]

    @property  # type: ignore[misc]
    def requires_grad(self) -> bool:
        return self._real.requires_grad or self._imag.requires_grad

    def numel(self) -> int:
        return self._real.numel()

    def is_floating_point(self) -> bool:
        return False

    # ------------------------------------------------------------ values

    def realize(self, *lst: Any, do_update_stats: bool = True) -> Self:
        others = [part for other in lst for part in (_part(other, 0), _part(other, 1))]
        self._real.realize(self._imag, *others, do_update_stats=do_update_stats)
        return self

    def numpy(self) -> NDArray[Any]:
        import numpy as np

        self.realize()
        result = np.empty(self.shape, np.complex64 if self.dtype is complex64 else np.complex128)
        result.real, result.imag = self._real.numpy(), self._imag.numpy()
        return result

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        del copy  # the parts are stored separately, so it is always a copy
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def tolist(self) -> Any:
        return self.numpy().tolist()

    def item(self) -> Any:
        return complex(self._real.item(), self._imag.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __float__(self) -> float:
        raise DTypeError("float", "a complex number is not a float", "take `.real`, `.imag` or `.abs()`")

    __int__ = __index__ = __float__  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"ComplexTensor({self.numpy()!r})".replace("array(", "").replace("))", ")")

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A copy, with interleaved parts."""
        del stream, copy
        given: dict[str, Any] = {"max_version": max_version, "dl_device": dl_device}
        return self.numpy().__dlpack__(**{name: value for name, value in given.items() if value is not None})

    # ------------------------------------------------------------ shifts

    @property
    def T(self) -> Self:
        return self.permute(tuple(reversed(range(self.ndim))))

    @property
    def mT(self) -> Self:
        return self.transpose(-2, -1)

    def __len__(self) -> int:
        return len(self._real)

    def __getitem__(self, index: Any) -> Any:
        return ComplexTensor(self._real[index], self._imag[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        given = as_complex(value, self.device)
        self._real, self._imag = self._real.contiguous(), self._imag.contiguous()
        self._real[index] = given.real.cast(self._real.dtype)
        self._imag[index] = given.imag.cast(self._imag.dtype)

    def cast(self, dtype: object) -> Any:
        """As another complex dtype; a real one would lose the imaginary part and is refused."""
        wanted = complex_dtype(dtype)
        if wanted is None:
            message = f"{self.dtype.name} as {dtype!r} loses the imaginary part"
            raise DTypeError("cast", message, "take `.real` or `.abs()` first")
        part = PART_DTYPES[wanted]
        return ComplexTensor(self._real.cast(part), self._imag.cast(part))

    # ------------------------------------------------------------ arithmetic

    def _with(self, x: Any) -> ComplexTensor:
        return as_complex(x, self.device, self._real.dtype)

    def add(self, x: Any, reverse: bool = False, *, alpha: Any = 1) -> Any:
        other = self._with(x if alpha == 1 else x * alpha)
        return ComplexTensor(self._real + other._real, self._imag + other._imag)

    def sub(self, x: Any, reverse: bool = False, *, alpha: Any = 1) -> Any:
        other = self._with(x if alpha == 1 else x * alpha)
        left, right = (other, self) if reverse else (self, other)
        return ComplexTensor(left._real - right._real, left._imag - right._imag)

    def mul(self, x: Any, reverse: bool = False) -> Any:
        other = self._with(x)
        return ComplexTensor(
            self._real * other._real - self._imag * other._imag, self._real * other._imag + self._imag * other._real
        )

    def div(self, x: Any, reverse: bool = False, rounding_mode: str | None = None) -> Any:
        if rounding_mode is not None:
            raise DTypeError("div", "complex numbers are not rounded", "leave out rounding_mode")
        left, right = (self._with(x), self) if reverse else (self, self._with(x))
        return complex_functions.divide(left, right)

    def pow(self, x: Any, reverse: bool = False) -> Any:
        left, right = (self._with(x), self) if reverse else (self, self._with(x))
        return complex_functions.power(left, right)

    def eq(self, x: Any) -> Tensor:  # type: ignore[override]
        other = self._with(x)
        return self._real.eq(other._real) & self._imag.eq(other._imag)

    def ne(self, x: Any) -> Tensor:  # type: ignore[override]
        return self.eq(x).logical_not()

    # Python tries the right operand first where its class is a subclass of the left one's: `tensor * complex`.
    __radd__ = reflected("add")
    __rsub__ = reflected("sub")
    __rmul__ = reflected("mul")
    __rtruediv__ = reflected("div")
    __rpow__ = reflected("pow")
    __eq__ = eq  # type: ignore[assignment]
    __ne__ = ne  # type: ignore[assignment]
    __hash__ = Tensor.__hash__

    def matmul(self, x: Any, reverse: bool = False, dtype: object = None) -> Any:
        """Four real products and two sums."""
        del dtype
        left, right = (self._with(x), self) if reverse else (self, self._with(x))
        real = left._real.matmul(right._real) - left._imag.matmul(right._imag)
        imag = left._real.matmul(right._imag) + left._imag.matmul(right._real)
        return ComplexTensor(real, imag)

    dot = matmul  # type: ignore[assignment]

    def __matmul__(self, x: Any) -> Any:
        return self.matmul(x)

    def __rmatmul__(self, x: Any) -> Any:
        return self.matmul(x, reverse=True)

    def _refuse_order(self, x: Any) -> Any:
        raise DTypeError("compare", "complex numbers have no order", "compare `.abs()` or the parts")

    __lt__ = __le__ = __gt__ = __ge__ = _refuse_order

    def _in_place(self, symbol: str, result: Any) -> Any:
        """`z += w` replaces the parts of `z` by those of the result."""
        del symbol
        self._real, self._imag = result._real, result._imag
        return self

    # ------------------------------------------------------------ parts and tests

    def conj(self) -> Any:
        return ComplexTensor(self._real, -self._imag)

    def abs(self) -> Tensor:  # type: ignore[override]
        return self._real.hypot(self._imag)

    def angle(self) -> Tensor:
        return self._imag.atan2(self._real)

    def isnan(self) -> Tensor:  # type: ignore[override]
        return self._real.isnan() | self._imag.isnan()

    def isinf(self, detect_positive: bool = True, detect_negative: bool = True) -> Tensor:  # type: ignore[override]
        return self._real.isinf() | self._imag.isinf()

    def isfinite(self) -> Tensor:  # type: ignore[override]
        return self._real.isfinite() & self._imag.isfinite()

    # ------------------------------------------------------------ reductions

    def sum(self, axis: Axes = None, keepdim: bool = False, dtype: object = None) -> Any:
        source = self if dtype is None else self.cast(dtype)
        return ComplexTensor(source.real.sum(axis, keepdim), source.imag.sum(axis, keepdim))

    def prod(self, axis: Axes = None, keepdim: bool = False, dtype: object = None) -> Any:
        """By pairwise products of halves until one slice is left."""
        source: Any = self if dtype is None else self.cast(dtype)
        axes = tuple(range(self.ndim)) if axis is None else axis if isinstance(axis, tuple | list) else (axis,)
        for each in sorted((number % max(self.ndim, 1) for number in axes), reverse=True):
            if self.ndim:
                source = _product_along(source, each)
        return source if keepdim or not self.ndim else source.squeeze(tuple(axes))

    def cumprod(self, axis: int) -> Any:
        """By doubling: each step multiplies with the element 1, 2, 4, ... positions before."""
        result: Any = self
        size, step = self.shape[axis], 1
        while step < size:
            moved = result.movedim(axis, 0)
            later = moved[step:] * moved[:-step]
            result = moved[:step].cat(later).movedim(0, axis).contiguous()
            step *= 2
        return result

    def count_nonzero(self, dim: Axes = None) -> Tensor:  # type: ignore[override]
        return self.ne(0).sum(dim)


def _product_along(source: Any, axis: int) -> Any:
    moved = source.movedim(axis, 0)
    if moved.shape[0] == 0:
        return ComplexTensor(source.real.prod(axis, keepdim=True), source.imag.sum(axis, keepdim=True))
    while moved.shape[0] > 1:
        half = moved.shape[0] // 2
        product = moved[:half] * moved[half : 2 * half]
        moved = (product.cat(moved[2 * half :]) if moved.shape[0] % 2 else product).contiguous()
    return moved.movedim(0, axis)


def as_complex(value: Any, device: Devices | None = None, part: DType | None = None) -> ComplexTensor:
    """A number, a real tensor or host data as a complex tensor; a number is weakly typed."""
    if isinstance(value, ComplexTensor):
        return value
    if type(value) in (bool, int, float, complex):  # NumPy's complex128 is a complex too, but has a dtype to keep
        number = complex(value)
        dtype = dtypes.float32 if part is None else part
        parts = [Tensor(each, device=device, dtype=dtype) for each in (number.real, number.imag)]
        return ComplexTensor(parts[0], parts[1])
    if isinstance(value, TensorBase):
        real: Any = value
        return ComplexTensor(real, real.zeros_like() if real.dtype.is_float else real.zeros_like(dtype=dtypes.float32))
    import numpy as np

    array = np.asarray(value)
    wide = np.float64 if array.dtype in (np.complex128, np.float64) else np.float32
    parts = [Tensor(np.array(each, wide), device=device) for each in (array.real, array.imag)]
    return ComplexTensor(parts[0], parts[1])


# Methods of `Tensor` that are applied to both parts.
_BY_PARTS = """
    cat chunk clone contiguous cumsum detach diagonal expand flatten flip gather index_select mean movedim neg
    pad permute repeat repeat_interleave reshape roll round shrink split squeeze stack take_along_dim tile to
    transpose tril triu unbind unflatten unsqueeze view
"""


def _install_methods() -> None:
    for name in _BY_PARTS.split():
        setattr(ComplexTensor, name, _of_parts(name))
    for name in ("all", "any", "nonzero"):
        setattr(ComplexTensor, name, _of_nonzero(name))
    for name in complex_functions.FUNCTIONS:
        function = getattr(complex_functions, name)
        setattr(ComplexTensor, name, functools.partialmethod(lambda self, apply: apply(self), function))


_install_methods()
