"""Every exception Tilewright raises; each finds the user's file and line that led to it.

Comes in: an operation, what is wrong with it, what to do. Goes out: one readable message.
Stands below everything: each stage raises from here and nothing else.

    TilewrightError
      UserError                    the caller can mend it; says how
        ShapeError                 also ValueError
          AxisError                also IndexError
        DTypeError                 also TypeError
        DeviceError
        IndexingError              also IndexError
        KernelError                a custom kernel is not well formed
        KernelOptError
        UnsupportedError           also NotImplementedError
        OutOfMemoryError           also MemoryError
        RealizeError
        NonFiniteError             also ArithmeticError; CHECK_NAN=1 found a NaN or an infinity
        ConfigError                also ValueError
        CacheError
        JitError
        ParseError                 also ValueError; shows the text with a caret
        StateError                 also ValueError; a state dict does not fit its model
        FileError                  a file of weights or data cannot be had, read or written
          FileFormatError          also ValueError; it is damaged, or asks for what loading refuses
        GenerationError            also ValueError; a language model cannot go on, or take so long a text
          TemplateError            a chat template is broken, refuses the messages or takes too much
      EmulatorError                a kernel did something no device may do
        OutOfBoundsError
        UninitialisedReadError
        RaceError
        UnwrittenOutputError
      InternalError                a bug of ours; says how to dump a reproduction
        VerifyError                a graph breaks the rules of its stage
        KernelDifferenceError      an optimised kernel computes something else than the unoptimised one
        CompileError               a toolchain refused what we gave it
"""

from __future__ import annotations

from tilewright.base.location import Location, user_location


class TilewrightError(Exception):
    """The root: catch this to catch everything Tilewright raises.

    `location` is the user's file and line. It is found when the error is made; pass it where the fault lies with
    a line that ran earlier, such as the one that built a tensor which only now is realised.
    """

    def __init__(self, operation: str, message: str, remedy: str = "", *, location: Location | None = None) -> None:
        # These three are what pickle hands back to the constructor when an error crosses a process boundary.
        super().__init__(operation, message, remedy)
        self.operation = operation
        self.message = message
        self.remedy = remedy
        self.location = user_location() if location is None else location

    def __str__(self) -> str:
        lines = [f"{self.operation}: {self.message}", *self._details()]
        if self.location is not None:
            lines.append(f"  at {self.location[0]}:{self.location[1]}")
        if self.remedy:
            lines.append(f"  to mend it: {self.remedy}")
        return "\n".join(lines)

    def _details(self) -> list[str]:
        """Return the lines that stand between the message and the location."""
        return []


class UserError(TilewrightError):
    """The caller asked for something that cannot be done. Raised at the user's line, before anything is run."""


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

    Fixed, by casting where the loss is meant::

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


class KernelError(UserError):
    """A custom kernel is not well formed: it ends what is no range, orders what is no memory, or has no effect.

    Broken, a value is no effect::

        return (x[row] + 1).sink(arg=KernelInfo("add"))

    Fixed, by storing it::

        return out[row].set(x[row] + 1, end=row).sink(arg=KernelInfo("add"))
    """


class KernelOptError(UserError):
    """An `Opt` is illegal for this kernel. The message holds the reason the transform's check gave.

    Broken, 5 does not divide the 64-long axis::

        KernelInfo(opts_to_apply=(Opt(OptOps.GROUPTOP, 0, 5),))

    Fixed::

        KernelInfo(opts_to_apply=(Opt(OptOps.GROUPTOP, 0, 8),))
    """


class UnsupportedError(UserError, NotImplementedError):
    """The request makes sense but this device or this version cannot do it.

    Broken, where the device has no float64::

        Tensor([1.0], dtype="float64", device="METAL").exp()

    Fixed::

        Tensor([1.0], dtype="float32", device="METAL").exp()
    """


class OutOfMemoryError(UserError, MemoryError):
    """A device cannot hold another buffer of the size asked for. Nothing is lost; free something and go on.

    Broken::

        Tensor.zeros(1 << 45).contiguous().realize()

    Fixed, by keeping the value lazy, so that no memory is needed for it::

        Tensor.zeros(1 << 45)[:16].realize()
    """


class RealizeError(UserError):
    """A tensor's value cannot be had: its memory was freed, or its size is not known yet.

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


class ConfigError(UserError, ValueError):
    """An option does not exist or was given a value it cannot have.

    Broken::

        with Context(DEBGU=2): ...

    Fixed::

        with Context(DEBUG=2): ...
    """


class CacheError(UserError):
    """The cache folder cannot be used: not writable, not a folder, or full.

    Broken::

        TILEWRIGHT_CACHE_DIR=/etc/hostname python train.py

    Fixed, with a folder that can be written, or without a disk cache::

        CACHE=0 python train.py
    """


class JitError(UserError):
    """A function cannot be captured: it returns what is not a tensor, or its result depends on what is not captured.

    Broken, the value is read while the function is captured::

        @jit
        def step(x): return x + x.sum().item()

    Fixed, by staying in tensors::

        @jit
        def step(x): return x + x.sum()
    """


class ParseError(UserError, ValueError):
    """A text form (a graph, a dtype, a pattern) cannot be read; the message points at the character.

    Broken::

        parse("%0 = CONST int32 (")

    Fixed::

        parse("%0 = CONST int32 () 1")
    """

    def __init__(
        self,
        operation: str,
        message: str,
        remedy: str = "",
        *,
        text: str = "",
        position: int = 0,
        location: Location | None = None,
    ) -> None:
        super().__init__(operation, message, remedy, location=location)
        self.text = text
        self.position = position

    def _details(self) -> list[str]:
        if not self.text:
            return []
        line_start = self.text.rfind("\n", 0, self.position) + 1
        line_number = self.text.count("\n", 0, self.position) + 1
        line = self.text[line_start:].partition("\n")[0]
        column = self.position - line_start
        prefix = f"  line {line_number}: "
        return [prefix + line, " " * (len(prefix) + column) + "^"]


class StateError(UserError, ValueError):
    """A state dict does not fit its model. The message lists the names that lack, are too many or differ.

    Broken::

        load_state_dict(Linear(4, 2), {"weight": Tensor.zeros(2, 3)})

    Fixed::

        load_state_dict(Linear(4, 2), {"weight": Tensor.zeros(2, 4), "bias": Tensor.zeros(2)})
    """


class FileError(UserError):
    """A file of weights or data is not there and cannot be fetched, cannot be read or written, or lacks what was asked.

    Broken, without a network::

        x_train, y_train, x_test, y_test = datasets.cifar10()

    Fixed, with a folder that holds the files::

        x_train, y_train, x_test, y_test = datasets.cifar10(folder="/data/cifar10")
    """


class FileFormatError(FileError, ValueError):
    """A file of weights or data is damaged, cut off, of another format, or asks for what loading refuses.

    Broken, a pickle may run any program, and this one names `os.system`::

        torch_load("from_a_stranger.pt")

    Fixed, with a format that holds numbers alone::

        safe_load("from_a_stranger.safetensors")
    """


class GenerationError(UserError, ValueError):
    """A language model cannot go on: a prompt is longer than its context, or it gave no probabilities.

    Broken::

        Generator(model, context=64).submit(list(range(100)), Sampling(), limit=10)

    Fixed::

        Generator(model, context=128).submit(list(range(100)), Sampling(), limit=10)
    """


class TemplateError(GenerationError):
    """A chat template is broken, refuses the messages it was given, or takes more time or memory than a template may.

    Broken, where the template wants roles to alternate::

        template.render([{"role": "assistant", "content": "Hello"}])

    Fixed::

        template.render([{"role": "user", "content": "Hello"}])
    """


class EmulatorError(TilewrightError):
    """The PYTHON device caught a kernel in something that is undefined on real hardware.

    `operation` is the kernel's name. In a kernel of your own the kernel is wrong; in one the compiler made, we are.
    """


class OutOfBoundsError(EmulatorError):
    """A load or store that is not masked off touches memory outside its buffer."""


class UninitialisedReadError(EmulatorError):
    """A load reads memory that nobody wrote."""


class RaceError(EmulatorError):
    """Two threads touch one address between two barriers, at least one of them writing."""


class UnwrittenOutputError(EmulatorError):
    """A kernel leaves elements of an output unwritten that nobody wrote before."""


_REPORT = (
    "this is a bug in Tilewright. Run the program again with VERIFY_GRAPH=1 DEBUG=5 and send what it prints: "
    "the last graph shown is the reproduction"
)


class InternalError(TilewrightError):
    """A promise between two parts of Tilewright is broken. The caller did nothing wrong."""

    def __init__(self, message: str, *, location: Location | None = None) -> None:
        super().__init__("internal error", message, _REPORT, location=location)
        self.args = (message,)


class VerifyError(InternalError):
    """A graph breaks the specification of its stage; names the stage, the pass that made it and the node."""

    def __init__(self, message: str, *, stage: str = "", pass_name: str = "", node: object = None) -> None:
        super().__init__(message)
        self.stage = stage
        self.pass_name = pass_name
        # Text, not the node: an error must not keep a graph alive, and must cross a process boundary.
        self.node = "" if node is None else str(node)

    def _details(self) -> list[str]:
        named = (("stage", self.stage), ("pass", self.pass_name), ("node", self.node))
        return [f"  {label}: {value}" for label, value in named if value]


class KernelDifferenceError(InternalError):
    """An optimised kernel computes something else than the unoptimised one. `kernel` is its name, `repro` the file that
    replays it; the engine adds the user's line, which a kernel that several lines share does not know."""

    def __init__(self, message: str, *, kernel: str = "", repro: str = "") -> None:
        super().__init__(message)
        self.kernel = kernel
        self.repro = repro
        if repro:
            self.remedy = f"this is a bug in Tilewright: `tilewright debug {repro}` finds the step at fault"

    def _details(self) -> list[str]:
        return [f"  {label}: {text}" for label, text in (("kernel", self.kernel), ("repro", self.repro)) if text]


class CompileError(InternalError):
    """A toolchain refused the source a renderer wrote. `source` holds that source, shown with line numbers."""

    def __init__(self, message: str, *, source: str = "") -> None:
        super().__init__(message)
        self.source = source

    def _details(self) -> list[str]:
        return [f"  {number:4d} | {line}" for number, line in enumerate(self.source.splitlines(), start=1)]
