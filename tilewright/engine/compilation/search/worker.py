"""The process that compiles and runs candidates of a search. In: requests over a socket. Out: an answer to each.
A candidate that crashes or never ends takes this process with it and nothing else.

`python -m tilewright.engine.compilation.search.worker FD` is started by `process`; it is not for people."""

from __future__ import annotations

import importlib
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from tilewright.base.errors import TilewrightError
from tilewright.codegen.pipeline import lower, program_params
from tilewright.engine import devices
from tilewright.engine.compilation.compile import compile_with
from tilewright.engine.compilation.search.process import Task
from tilewright.engine.compilation.verify import agrees, random_bytes, run_on_inputs, upload, with_values
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.records import KernelInfo, Opt, Param
from tilewright.graph.sizes import variable_values
from tilewright.graph.text.parse import parse
from tilewright.kernel.optimise import optimise
from tilewright.runtime.device import Driver, open_driver

# A kernel is run this often, or until this much time is spent; the fastest run counts.
RUNS = 6
SECONDS_OF_RUNS = 0.25
# A candidate this much slower than the best is not run a second time.
HOPELESS = 3.0
# The emulator checks kernels up to this many operations; it would take minutes for larger ones.
EMULATED_OPERATIONS = 1 << 24
REFERENCE_DEVICE = "PYTHON"


class Worker:
    def __init__(self, task: Task) -> None:
        self.kernel = parse(task.text)
        self.device = task.device
        self.driver = open_driver(task.device)
        self.params = program_params(self.kernel)
        self.hook = _load_hook(task.hook)
        self.inputs = self._make_inputs(task.seed)
        self.expected: list[Any] | None = None

    def _make_inputs(self, seed: int) -> list[bytes]:
        return [random_bytes(param, np.random.default_rng(seed + param.slot)) for param in self.params]

    # ------------------------------------------------------------ requests

    def compile(self, opts: tuple[Opt, ...]) -> None:
        """Leaves the binary in the cache folder, where `measure` of another process finds it."""
        compile_with(self.kernel, self.device, opts)

    def measure(self, opts: tuple[Opt, ...], best: float | None) -> float:
        """The seconds of the fastest run. A wrong result is an error."""
        compiled = compile_with(self.kernel, self.device, opts)
        if self.expected is None:
            self.expected = self._outputs(self._plain(self.driver), self.driver, self.inputs)
        if self.hook is not None:
            self.hook.before_run(opts)
        self._compare(self._outputs(compiled.handle, self.driver, self.inputs, opts), self.expected, "unoptimised")
        handle = with_values(self.driver, compiled.handle, variable_values([self.kernel]))
        runner = self.driver.prepare([(handle, upload(self.driver, self.inputs))])
        fastest = float("inf")
        begin = time.perf_counter()
        for _ in range(RUNS):
            start = time.perf_counter()
            runner.run()
            self.driver.synchronize()
            fastest = min(fastest, time.perf_counter() - start)
            if time.perf_counter() - begin > SECONDS_OF_RUNS or (best is not None and fastest > best * HOPELESS):
                break
        return fastest

    def check(self, opts: tuple[Opt, ...], seed: int) -> None:
        """The winner on fresh numbers: against the unoptimised kernel, and on the emulator where that takes seconds."""
        inputs = self._make_inputs(seed)
        compiled = compile_with(self.kernel, self.device, opts)
        got = self._outputs(compiled.handle, self.driver, inputs, opts)
        self._compare(got, self._outputs(self._plain(self.driver), self.driver, inputs), "unoptimised")
        if compiled.program.flops + compiled.program.bytes_moved <= EMULATED_OPERATIONS:
            emulator = open_driver(REFERENCE_DEVICE)
            self._compare(got, self._outputs(self._plain(emulator), emulator, inputs), "emulated")

    # ------------------------------------------------------------ running

    def _plain(self, driver: Driver) -> Any:
        """The kernel without any opt, ready to launch."""
        plain = self.kernel.replace(arg=KernelInfo(self.kernel.arg.name, opts_to_apply=()))
        program = lower(optimise(plain, driver.target), driver.target)
        return driver.load(driver.compile(driver.render(program)), program)

    def _outputs(self, handle: Any, driver: Driver, inputs: list[bytes], opts: tuple[Opt, ...] | None = None) -> Any:
        contents = zip(self.params, run_on_inputs(driver, handle, inputs, variable_values([self.kernel])), strict=True)
        written = [(param, data) for param, data in contents if param.is_written and not param.holds_checks]
        results = [np.frombuffer(data, dtype=numpy_dtype(param.dtype)) for param, data in written]
        return results if self.hook is None or opts is None else self.hook.after_run(opts, results)

    def _compare(self, got: list[Any], want: list[Any], which: str) -> None:
        written: list[Param] = [param for param in self.params if param.is_written and not param.holds_checks]
        for param, ours, theirs in zip(written, got, want, strict=True):
            if not agrees(ours, theirs, param.dtype):
                raise WrongResultError(f"buffer {param.slot} differs from that of the {which} kernel")


class WrongResultError(Exception):
    """A candidate that ran and computed something else."""


def _load_hook(name: str) -> Any:
    if not name:
        return None
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def serve(connection: Connection) -> None:
    worker: Worker | None = None
    while True:
        try:
            request, *arguments = connection.recv()
        except EOFError:
            return
        try:
            if request == "task":
                worker = Worker(*arguments)
                answer: tuple[str, Any] = ("done", None)
            else:
                assert worker is not None
                answer = ("done", getattr(worker, request)(*arguments))
        except WrongResultError as error:
            answer = ("wrong", str(error))
        except (TilewrightError, MemoryError, RuntimeError, OSError) as error:
            answer = ("failed", f"{type(error).__name__}: {error}")
        connection.send(answer)


if __name__ == "__main__":
    assert devices is not None  # entering the backends is what importing it is for
    serve(Connection(int(sys.argv[1])))
