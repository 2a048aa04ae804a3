"""Errors of kernels and opts that users write, raised where a kernel is built or optimised, and errors that the
emulator finds when it runs one."""

from __future__ import annotations

from tilewright.base.errors.root import TilewrightError, UserError


class KernelError(UserError):
    """A custom kernel is malformed: it ends a node that is not a range, orders a node that is not memory, or stores
    nothing.

    Broken, the value is not stored::

        return (x[row] + 1).sink(arg=KernelInfo("add"))

    Fixed::

        return out[row].set(x[row] + 1, end=row).sink(arg=KernelInfo("add"))
    """


class KernelOptError(UserError):
    """An `Opt` is illegal for this kernel. The message holds the reason the transform's check gave.

    Broken, 5 does not divide the 64-long axis::

        KernelInfo(opts_to_apply=(Opt(OptOps.GROUPTOP, 0, 5),))

    Fixed::

        KernelInfo(opts_to_apply=(Opt(OptOps.GROUPTOP, 0, 8),))
    """


class EmulatorError(TilewrightError):
    """The PYTHON device found behaviour in a kernel that is undefined on real hardware.

    `operation` is the kernel's name. In a kernel of your own the kernel is wrong; in one that the compiler made it is a
    bug of ours.
    """


class OutOfBoundsError(EmulatorError):
    """A load or store that is not masked off touches memory outside its buffer."""


class UninitialisedReadError(EmulatorError):
    """A load reads memory that was never written."""


class RaceError(EmulatorError):
    """Two threads access one address between two barriers, and at least one of them writes."""


class UnwrittenOutputError(EmulatorError):
    """A kernel leaves elements of an output unwritten that were not written before it."""
