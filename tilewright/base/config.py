"""Every option, declared once: its name, type, default and meaning.

Comes in: the environment, read once when the package is imported, and `Context` blocks.
Goes out: `options.NAME`, a plain attribute read that any stage may make in a hot path.

While no `Context` is open anywhere, `options` is an ordinary object and a read costs about 15 ns. While one is open,
`options` takes a class whose properties first ask a context variable what the running thread (or asyncio task) has set,
about 150 ns; a `threading.local` costs that for every read of every program. A `Context` belongs to the thread that
entered it; a worker thread that must see the same values enters `Context(**overrides())`, taken before it was started.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextvars import ContextVar
from typing import ParamSpec, TypeVar, cast

from tilewright.base.errors import ConfigError, InternalError
from tilewright.base.events import exchange_checking, exchange_printing, exchange_profiling
from tilewright.base.forks import renewed_lock
from tilewright.base.option import Option, Value

T = TypeVar("T", int, str)
P = ParamSpec("P")
R = TypeVar("R")


SCHEDULE = ("schedule",)
KERNEL = ("kernel",)
BOTH = ("schedule", "kernel")
TARGET = ("target",)


def _option(
    default: T, doc: str, *, minimum: int = 0, choices: tuple[str, ...] = (), affects: tuple[str, ...] = ()
) -> T:
    """Declare an option. The type checker sees the value that a read gives, which is what the attribute becomes."""
    return cast(T, Option(default, doc, minimum, choices, affects))


class Options:
    """The options, one attribute each. Read them as `options.DEBUG`; change them with `Context` or `set_option`."""

    ALLOW_BF16X6 = _option(
        1,
        "0 keeps tensor cores from multiplying float32, which they do as sums of bfloat16 parts with float32 accuracy.",
        affects=TARGET,
    )
    ALLOW_FLOAT_ATOMICS = _option(
        0,
        "1 lets sums by index (`scatter_add`, `index_add`, gradients of `gather`, indexing and embeddings) add float32 "
        "atomically, in any order, where the device can and it is faster: the last bits of results then differ between "
        "runs, and terms below 1.2e-38 may count as 0.",
        affects=SCHEDULE,
    )
    ALLOW_TF32 = _option(0, "1 lets tensor cores multiply float32 with 10 bits of fraction, as tf32.", affects=TARGET)
    BEAM = _option(
        0,
        "n searches for the opts of each kernel and keeps the n best of each round; 0 takes the plan of a template.",
        affects=KERNEL,
    )
    BEAM_CANDIDATES = _option(500, "The maximum number of candidates that a search measures for one kernel.", minimum=1)
    BEAM_SECONDS = _option(60, "Seconds after which a search for one kernel stops; the next call goes on from there.")
    CACHE = _option(1, "0 neither reads nor writes compiled programs and schedules on disk.")
    CHECK = _option(
        0,
        "1 checks on every device that indices and class labels are in range; the CPU does so in any case.",
        affects=SCHEDULE,
    )
    CHECK_NAN = _option(
        0,
        "1 checks the results of every run and reports the first operation, index and line with a NaN or an infinity.",
    )
    CPU_ARCH = _option(
        "",
        "LLVM's name of the processor that CPU code is compiled for, such as `haswell`; empty is this one.",
        affects=TARGET,
    )
    CACHE_MEGABYTES = _option(
        2048, "The maximum size of the disk cache; the least recently used entries are removed first. 0: no limit."
    )
    CPU_COMPILER = _option(
        "llvm",
        "What compiles kernels for the CPU device: LLVM in this process, or the system's clang or gcc on C text.",
        choices=("llvm", "clang", "gcc"),
        affects=TARGET,
    )
    CPU_FACTS = _option(
        "",
        "Facts of the CPU's caches and pages in place of those that the system gives, such as "
        "`core_cache_bytes=2M page_bytes=16K`; `tilewright devices` prints those in use.",
        affects=TARGET,
    )
    CUDA_ARCH = _option(
        "sm_90a", "The architecture that CUDA text is compiled for where there is no card.", affects=TARGET
    )
    DEBUG = _option(
        0,
        "How much is printed: 1 devices and caches, 2 a line per kernel, 3 schedule and axes, 4 source, 5 graphs, "
        "6 assembly. Each level includes those below it.",
    )
    DEVICE = _option("", "The device of tensors that name none, such as `CUDA` or `CPU:1`; empty is `CPU`.")
    DISABLE_RULES = _option(
        "", "Rewrite rules that are not applied, by name, separated by commas, to see which one breaks.", affects=BOTH
    )
    DYNAMIC_KERNELS = _option(
        2,
        "0 compiles every kernel for its own sizes; 2 lets small kernels of many sizes share one with symbolic sizes; "
        "1 too, except those that add up floats, whose last bits then do not depend on the sizes that came before.",
        affects=KERNEL,
    )
    FLUSH_DENORMALS = _option(
        1,
        "How CPU kernels treat floats below the smallest normal number (1.2e-38 in float32), which are slow: 0 keeps "
        "them, 1 takes them as zero in sums of products, 2 in every kernel.",
        affects=TARGET,
    )
    FOLD_REDUCE = _option(1, "0 keeps a loop for a sum that has a closed form, such as a count.", affects=BOTH)
    FUSE = _option(1, "0 makes a separate kernel for every operation.", affects=SCHEDULE)
    FUSE_LIMIT = _option(
        -1,
        "Fuse only the first n operations with what uses them and store the others, to find the one that breaks; -1 is "
        "all.",
        minimum=-1,
        affects=SCHEDULE,
    )
    JIT = _option(1, "0 disables `jit`: every call runs the function.")
    JOIN_LAUNCHES = _option(
        1,
        "0 launches every kernel by itself; 1 runs equal small and independent kernels as one launch, on "
        "devices whose kernels take the buffers of all of them.",
        affects=SCHEDULE,
    )
    KEEP_NAMED = _option(
        1,
        "0 computes a value again for each result that is asked for later; 1 keeps a value with a reduction that was "
        "computed on the way to a result, where a tensor of the program still names it.",
    )
    LIFT_SIZES = _option(
        1,
        "1 lets graphs that differ in their sizes alone share a plan with symbolic sizes, from the third size on, "
        "where DYNAMIC_KERNELS is 2: last bits of float sums may then depend on the sizes that came before; 0 makes a "
        "plan for each size.",
    )
    REMEMBER_GRAPHS = _option(
        1,
        "0 makes the graph of every operation anew; 1 makes that of an operation, of a gradient and of an optimiser's "
        "update without calling it, where two calls on operands of the same kind made the same graph.",
    )
    NOOPT = _option(
        0, "1 leaves every kernel as the scheduler made it; opts that a kernel states are applied.", affects=KERNEL
    )
    OPT_LIMIT = _option(
        -1,
        "Apply only the first n opts that a template chooses, to find the one that breaks; -1 is all.",
        minimum=-1,
        affects=KERNEL,
    )
    PASS_LIMIT = _option(
        -1,
        "Run only the first n of the optional passes, to find the one that breaks; -1 is all.",
        minimum=-1,
        affects=BOTH,
    )
    PLAN_CACHE = _option(
        256,
        "Maximum schedules in a process's cache, with eight kernels each; the oldest are removed first. 0: no limit.",
    )
    PROFILE = _option(
        0,
        "1 writes, when the process ends, a timeline (kernels, copies, replays, stages of the compiler, with user "
        "lines) as a file for Perfetto; `tilewright stats` prints its table.",
    )
    PROFILE_FILE = _option("", "The file that PROFILE=1 writes; empty is `tilewright_profile.json`.")
    QUANTISED_ACTIVATIONS = _option(
        1,
        "0 multiplies quantised weights by float activations; 1 rounds activations to 8 bits for each run of 32 where "
        "the device has dot-product instructions: the relative error of a product is about 0.5 %; 2 rounds them to two "
        "terms of 8 bits, for twice the work and an error of about 0.002 %.",
    )
    REUSE_LIMIT = _option(
        -1,
        "Let only the first n temporary buffers of a schedule share memory, to find two that overlap; -1 is all.",
        minimum=-1,
        affects=SCHEDULE,
    )
    REWRITE_LIMIT = _option(
        -1, "Apply only the first n rewrites, to find the one that breaks; -1 is all.", minimum=-1, affects=BOTH
    )
    SEED = _option(0, "The seed of random numbers until `Tensor.manual_seed` is called.")
    SERIAL_LIMIT = _option(
        0,
        "Wait for the device after each of the first n kernels and copies of a schedule, to find a missing wait "
        "between queues; -1 is after each.",
        minimum=-1,
        affects=SCHEDULE,
    )
    SHOW_PASS = _option("", "The pass, such as `decompose`, after which DEBUG=5 prints the graph; empty is every pass.")
    SPLIT_REDUCE = _option(
        1, "0 keeps a large reduction with few outputs in one kernel instead of splitting it in two.", affects=SCHEDULE
    )
    TILEWRIGHT_CACHE_DIR = _option("", "The folder of the disk cache; empty is the user's cache folder.")
    TILEWRIGHT_STATE_DIR = _option(
        "", "The folder of repro files and of what `tilewright debug` has found; empty is the user's state folder."
    )
    TILEWRIGHT_THREADS = _option(
        0, "Threads of the CPU device; 0 is every core that the process may run on.", affects=TARGET
    )
    VERIFY = _option(0, "1 checks each optimised kernel against the unoptimised one on the emulator.", affects=KERNEL)
    VERIFY_GRAPH = _option(
        0, "1 verifies the graph after every pass of every stage; the error names the pass.", affects=BOTH
    )

    def __setattr__(self, name: str, value: object) -> None:
        _declaration(name)
        raise ConfigError(
            f"option {name}",
            "an option is not assigned to",
            f"use `with Context({name}={value!r}):` for a block or `set_option({name!r}, {value!r})` for the process",
        )


DECLARATIONS: dict[str, Option] = {
    name: attribute for name, attribute in sorted(vars(Options).items()) if isinstance(attribute, Option)
}


def options_that_affect(*results: str) -> tuple[str, ...]:
    """The names of the options that any of "schedule", "kernel" and "target" depends on."""
    return tuple(name for name, option in DECLARATIONS.items() if not set(results).isdisjoint(option.affects))


for _name in DECLARATIONS:
    # Python does not specialise the read of an instance attribute that hides a class attribute.
    delattr(Options, _name)


def _unknown_option(name: str) -> ConfigError:
    import difflib  # slower to import than this module, and only needed for an error

    nearest = difflib.get_close_matches(name.upper(), DECLARATIONS, n=1, cutoff=0.5)
    remedy = f"did you mean {nearest[0]}?" if nearest else "the options are " + ", ".join(DECLARATIONS)
    return ConfigError(f"option {name}", "no option has this name", remedy)


def _declaration(name: str) -> Option:
    declaration = DECLARATIONS.get(name)
    if declaration is None:
        raise _unknown_option(name)
    return declaration


# Options that listen to events while they are set: told of each change, from what to what.
_ANNOUNCED: dict[str, Callable[[int, int], None]] = {
    "CHECK_NAN": exchange_checking,
    "DEBUG": exchange_printing,
    "PROFILE": exchange_profiling,
}

options = Options()
_process_values: dict[str, Value] = {}
_open_blocks = 0
# Re-entrant: the garbage collector may end a forgotten generator, and the `Context` in it, inside a locked block.
_options_lock = renewed_lock()


def _set_process_value(name: str, value: Value) -> None:
    """Keep the value twice: in the object, where a plain read finds it, and where the overlaid class finds it."""
    with _options_lock:
        if name in _ANNOUNCED:
            _ANNOUNCED[name](int(_process_values.get(name, 0)), int(value))
        _process_values[name] = value
        if _open_blocks:
            # The present class may have a property of this name, so the instance dictionary is written directly.
            vars(options)[name] = value
        else:
            object.__setattr__(options, name, value)


def load_environment() -> None:
    """Set the process's value of every option from the environment, or to its default."""
    for name, declaration in DECLARATIONS.items():
        _set_process_value(name, declaration.parse(os.environ.get(name, "")))


load_environment()


def set_option(name: str, value: Value) -> None:
    """Set an option for the whole process. A `Context` that is open in some thread still wins there."""
    _set_process_value(name, _declaration(name).check(value))


class _Overlay:
    """What the open `Context` blocks of one thread have set, all of them together, and the overlay around this one."""

    __slots__ = ("outer", "values")

    def __init__(self, values: dict[str, Value], outer: _Overlay | None) -> None:
        self.values = values
        self.outer = outer


_overlay: ContextVar[_Overlay | None] = ContextVar("tilewright_options", default=None)


class _OverlaidOptions(Options):
    """The class of `options` while any thread has a `Context` open: each option is a property that asks the overlay."""


def _overlaid_property(name: str) -> property:
    def read(_: Options) -> Value:
        overlay = _overlay.get()
        if overlay is not None and name in overlay.values:
            return overlay.values[name]
        return _process_values[name]

    return property(read)


for _name in DECLARATIONS:
    setattr(_OverlaidOptions, _name, _overlaid_property(_name))


def _count_open_blocks(change: int) -> None:
    """Set the class of `options`: the overlaid one while a block is open in any thread."""
    global _open_blocks
    with _options_lock:
        _open_blocks += change
        object.__setattr__(options, "__class__", _OverlaidOptions if _open_blocks else Options)


def overrides() -> dict[str, Value]:
    """Return what the open `Context` blocks of this thread have set, to be handed to a worker thread."""
    overlay = _overlay.get()
    return {} if overlay is None else dict(overlay.values)


class Context:
    """Set options for a block, or for every call of a function, in the current thread.

        with Context(DEBUG=2, NOOPT=1):
            x.realize()

        @Context(NOOPT=1)
        def train(): ...

    Whatever held before is restored on the way out, also when an exception passes. Blocks nest, and one `Context` may
    be entered many times, by many threads at once.
    """

    __slots__ = ("_values",)

    def __init__(self, **values: Value) -> None:
        self._values = {name: _declaration(name).check(value) for name, value in values.items()}

    def __enter__(self) -> Context:
        outer = _overlay.get()
        values = self._values if outer is None else {**outer.values, **self._values}
        _overlay.set(_Overlay(values, outer))
        _count_open_blocks(1)
        for name in self._values.keys() & _ANNOUNCED.keys():
            _ANNOUNCED[name](0, int(self._values[name]))
        return self

    def __exit__(self, *exception: object) -> None:
        overlay = _overlay.get()
        if overlay is None:
            raise InternalError("a Context is left in a thread that did not enter it")
        _overlay.set(overlay.outer)
        _count_open_blocks(-1)
        for name in self._values.keys() & _ANNOUNCED.keys():
            _ANNOUNCED[name](int(self._values[name]), 0)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        from functools import wraps

        @wraps(function)
        def inside_context(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)

        return inside_context


def options_markdown() -> str:
    """Return the text of docs/options.md; `python -m tilewright.base.config > docs/options.md` writes it."""
    lines = [
        "# Options",
        "",
        "Made from `tilewright/base/config.py` by `python -m tilewright.base.config > docs/options.md`.",
        "",
        "Each option is an environment variable, read once at import, and a keyword of `Context`, which sets it for a",
        "block in the current thread: `with Context(DEBUG=2): ...`.",
        "",
        "| option | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for name, declaration in DECLARATIONS.items():
        default = f"`{declaration.default}`" if declaration.default != "" else "empty"
        kind = declaration.kind.__name__
        if declaration.choices:
            kind = " or ".join(f"`{choice}`" for choice in declaration.choices)
        lines.append(f"| `{name}` | {kind} | {default} | {declaration.doc} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(options_markdown(), end="")
