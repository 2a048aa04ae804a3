"""Every exception Tilewright raises, with the user's file and line that led to it.

In: an operation, what is wrong with it, what to do. Out: one readable message. Every stage raises these and no others.
The modules are divided by who raises: calls on tensors (`tensors`), code that reads options, files and prompts
(`inputs`), kernels (`kernels`), and the compiler itself (`internal`).

    TilewrightError
      UserError                    the caller can fix it; the message says how
        ShapeError                 also ValueError
          AxisError                also IndexError
        DTypeError                 also TypeError
        DeviceError
        IndexingError              also IndexError
        UnsupportedError           also NotImplementedError
        OutOfMemoryError           also MemoryError
        RealizeError
        NonFiniteError             also ArithmeticError; CHECK_NAN=1 found a NaN or an infinity
        JitError
        KernelError                a custom kernel is malformed
        KernelOptError
        ConfigError                also ValueError
        CacheError
        ParseError                 also ValueError; shows the text with a caret
        StateError                 also ValueError; a state dict does not fit its model
        FileError                  a file of weights or data cannot be fetched, read or written
          FileFormatError          also ValueError; it is damaged, or asks for what loading refuses
        GenerationError            also ValueError; a language model cannot continue, or a prompt is too long
          TemplateError            a chat template is broken, refuses the messages or exceeds its limits
      EmulatorError                a kernel's behaviour is undefined on real hardware
        OutOfBoundsError
        UninitialisedReadError
        RaceError
        UnwrittenOutputError
      InternalError                a bug of Tilewright; the message says how to report it
        VerifyError                a graph breaks the rules of its stage
        KernelDifferenceError      an optimised kernel gives a different result than the unoptimised one
        CompileError               a toolchain refused the source
"""

from __future__ import annotations

from tilewright.base.errors.inputs import (
    CacheError,
    ConfigError,
    FileError,
    FileFormatError,
    GenerationError,
    ParseError,
    StateError,
    TemplateError,
)
from tilewright.base.errors.internal import (
    CompileError,
    InternalError,
    KernelDifferenceError,
    VerifyError,
)
from tilewright.base.errors.kernels import (
    EmulatorError,
    KernelError,
    KernelOptError,
    OutOfBoundsError,
    RaceError,
    UninitialisedReadError,
    UnwrittenOutputError,
)
from tilewright.base.errors.root import (
    TilewrightError,
    UserError,
)
from tilewright.base.errors.tensors import (
    AxisError,
    DeviceError,
    DTypeError,
    IndexingError,
    JitError,
    NonFiniteError,
    OutOfMemoryError,
    RealizeError,
    ShapeError,
    UnsupportedError,
)

__all__ = [
    "AxisError",
    "CacheError",
    "CompileError",
    "ConfigError",
    "DTypeError",
    "DeviceError",
    "EmulatorError",
    "FileError",
    "FileFormatError",
    "GenerationError",
    "IndexingError",
    "InternalError",
    "JitError",
    "KernelDifferenceError",
    "KernelError",
    "KernelOptError",
    "NonFiniteError",
    "OutOfBoundsError",
    "OutOfMemoryError",
    "ParseError",
    "RaceError",
    "RealizeError",
    "ShapeError",
    "StateError",
    "TemplateError",
    "TilewrightError",
    "UninitialisedReadError",
    "UnsupportedError",
    "UnwrittenOutputError",
    "UserError",
    "VerifyError",
]
