"""From a kernel to something that runs. In: a kernel (SINK) and a device. Out: a `CompiledKernel`.
Equal kernels are compiled once in a process, and once on a machine where the disk cache holds their binary."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from tilewright.base.config import options
from tilewright.base.events import emit, listeners, stage_timer, stage_times
from tilewright.codegen.pipeline import lower
from tilewright.engine.verify import verify_optimised
from tilewright.graph.records import Opt, Program
from tilewright.graph.uop import UOp
from tilewright.graph.verify import verify_kernel, verify_program
from tilewright.kernel.optimise import optimise
from tilewright.runtime.cache import cache_key, read_entry, write_entry
from tilewright.runtime.device import open_driver


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel ready to launch, with all that led to it."""

    ast: UOp
    optimised: UOp
    program: Program
    source: str
    handle: Any
    stage_times: dict[str, int]  # nanoseconds each stage took; no "compile" where the binary was on disk


_kernels: dict[tuple[object, ...], CompiledKernel] = {}
_lock = threading.RLock()


def compile_kernel(ast: UOp, device: str) -> CompiledKernel:
    key = (ast, device, open_driver(device).target, options.NOOPT, options.VERIFY, options.BEAM, options.FOLD_REDUCE)
    found = _kernels.get(key)
    if found is None:
        with _lock:
            found = _kernels.get(key)
            if found is None:
                found = _kernels[key] = compile_with(ast, device, _found_opts(ast, device))
    return found


def _found_opts(ast: UOp, device: str) -> tuple[Opt, ...] | None:
    """What search has for a kernel that leaves its opts open; None asks for the heuristic's choice."""
    if not options.BEAM or options.NOOPT or ast.arg.opts_to_apply is not None:
        return None
    if open_driver(device).target.is_reference:
        return None
    # Loads what starts processes, which a program without BEAM never needs.
    from tilewright.engine.search import find_opts

    return find_opts(ast, device)


def compile_with(ast: UOp, device: str, opts: tuple[Opt, ...] | None) -> CompiledKernel:
    """Compiles a kernel with these opts, whatever the process knows of it."""
    driver = open_driver(device)
    before = dict(stage_times)
    if options.VERIFY_GRAPH:
        verify_kernel(ast)
    optimised = optimise(ast, driver.target, opts)
    if options.VERIFY_GRAPH:
        verify_kernel(optimised)
    program = lower(optimised, driver.target)
    if options.VERIFY_GRAPH:
        verify_program(program)
    with stage_timer("render"):
        source = driver.render(program)
    with stage_timer("cache"):
        key = cache_key("program", source, driver.target.toolchain, driver.target.arch)
        binary = read_entry(key)
    if binary is None:
        with stage_timer("compile"):
            binary = driver.compile(source)
        with stage_timer("cache"):
            write_entry(key, binary)
    with stage_timer("load"):
        handle = driver.load(binary, program)
    spent = {name: total - before.get(name, 0) for name, total in stage_times.items() if total != before.get(name)}
    compiled = CompiledKernel(ast, optimised, program, source, handle, spent)
    if options.VERIFY and not driver.target.is_reference:
        verify_optimised(compiled, device)
    if listeners:
        emit("kernel-compiled", name=program.name, device=device, source=source, stage_times=spent, kernel=compiled)
    return compiled


def forget_kernels() -> None:
    """Empties the process's own cache, for tests and measurements."""
    _kernels.clear()


__all__ = ["CompiledKernel", "compile_kernel", "compile_with", "forget_kernels"]
