"""Errors of calls on tensors and of their values, raised by `tensor/`, `nn/`, `runtime/` and `engine/`, at the line of
the call."""

from __future__ import annotations

from tilewright.base.errors.root import UserError


class ShapeError(UserError, ValueError):
    """The shapes given to an operation do not fit together.

    Broken::

        Tensor.zeros(2, 3) + Tensor.zeros(2, 4)

    Fixed, by making every axis equal or 1::

        Tensor.zeros(2, 3) + Tensor.zeros(2, 1)
    """


class AxisError(ShapeError, IndexError):
    """An axis is out of range, or is named twice.

    Broken::

        Tensor.zeros(2, 3).sum(axis=2)

    Fixed, an axis of a 2-D tensor lies in -2..1::

        Tensor.zeros(2, 3).sum(axis=1)
    """


class DTypeError(UserError, TypeError):
    """An operation is not defined for a dtype, or no dtype of that name exists.

    Broken::

        Tensor([1.5, 2.5]) << 1

    Fixed, by casting where the loss is intended::

        Tensor([1.5, 2.5]).cast("int32") << 1
    """


class DeviceError(UserError):
    """A device does not exist here, or one operation mixes tensors of different devices.

    Broken::

        Tensor([1], device="CPU") + Tensor([2], device="PYTHON")

    Fixed, by moving one of them::

        Tensor([1], device="CPU") + Tensor([2], device="PYTHON").to("CPU")
    """


class IndexingError(UserError, IndexError):
    """An index is out of range or of a kind that cannot index.

    Broken::

        Tensor([1, 2, 3])[5]

    Fixed::

        Tensor([1, 2, 3])[2]
    """


class UnsupportedError(UserError, NotImplementedError):
    """The request makes sense but this device or this version cannot do it.

    Broken, where the device has no float64::

        Tensor([1.0], dtype="float64", device="METAL").exp()

    Fixed::

        Tensor([1.0], dtype="float32", device="METAL").exp()
    """


class OutOfMemoryError(UserError, MemoryError):
    """A device cannot hold another buffer of the size asked for. No other buffer is lost; free one and try again.

    Broken::

        Tensor.zeros(1 << 45).contiguous().realize()

    Fixed, by keeping the value lazy, so that no memory is needed for it::

        Tensor.zeros(1 << 45)[:16].realize()
    """


class RealizeError(UserError):
    """A tensor's value cannot be computed: its memory was freed, or its size is not known yet.

    Broken, `n` has no value::

        Tensor.zeros(Variable("n", 1, 8)).numpy()

    Fixed, by binding it::

        Tensor.zeros(Variable("n", 1, 8).bind(4)).numpy()
    """


class NonFiniteError(UserError, ArithmeticError):
    """CHECK_NAN=1: an operation made NaN or an infinity from finite values; raised at the line that wrote it.

    Broken::

        (x / 0).log().realize()

    Fixed::

        (x / x.abs().clamp(1e-6)).realize()
    """


class JitError(UserError):
    """A function cannot be captured: it returns a value that is not a tensor, or its result depends on state that
    cannot be captured.

    Broken, the value is read while the function is captured::

        @jit
        def step(x): return x + x.sum().item()

    Fixed, by staying in tensors::

        @jit
        def step(x): return x + x.sum()
    """
