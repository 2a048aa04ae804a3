"""Writing repro files. In: lazy tensors, or a script. Out: files that `tilewright replay` and `tilewright debug` take.

from tilewright.debug import dump

dump("softmax.repro", x.softmax())           # the whole schedule with the contents of its inputs
dump_script("train.py", [], "corpus")        # every kernel that a script compiles
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.base.config import Context
from tilewright.base.dtype import dtypes
from tilewright.base.errors import RealizeError
from tilewright.base.events import Event, subscribe
from tilewright.debug.describe import show_location
from tilewright.engine.compilation.verify import kernel_repro
from tilewright.engine.execution.nonfinite import read_buffer
from tilewright.engine.memory.parts import divide_outputs, held_buffer
from tilewright.engine.planning.bind import BoundGraph
from tilewright.graph.ops import Ops
from tilewright.graph.text.repro import SUFFIX, Repro, carried_options, inputs_of, save_repro, write_repro
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import Buffer, buffer_of
from tilewright.runtime.device import open_driver


def schedule_repro(
    outputs: Sequence[UOp],
    buffers: Sequence[Buffer],
    device: str,
    line: str = "",
    values: Mapping[str, int] | None = None,
) -> Repro:
    """The repro of a graph over PARAMs, with the present contents of their buffers. `values` are those of the variables
    in its sizes."""
    graph = UOp(Ops.SINK, dtypes.void, tuple(outputs))
    contents = {slot: buffer_bytes(buffer) for slot, buffer in enumerate(buffers)}
    target = open_driver(device).target
    facts = f"{target.name} {target.arch} {target.toolchain}"
    given = inputs_of(graph, contents)
    held = dict(values or {})
    return Repro("schedule", graph, device, given, 0, False, carried_options(), line, target=facts, values=held)


def buffer_bytes(buffer: Buffer) -> bytes:
    """The contents of a buffer; zeros where it has no memory yet."""
    return bytes(buffer.nbytes) if buffer.memory is None else bytes(read_buffer(buffer).tobytes())


def dump(path: str | Path, *tensors: Any) -> Path:
    """Writes the schedule that would compute these lazy tensors, with the contents of all it reads, to one file."""
    wanted = [tensor.uop for tensor in tensors if held_buffer(tensor.uop) is None]
    if not wanted:
        message = "the values are there already, so there is no schedule to write"
        raise RealizeError("dump", message, "dump an expression before it is realised")
    bound = BoundGraph(wanted)
    outputs: Sequence[UOp] = bound.outputs
    if bound.is_sharded:
        outputs = [node for division in divide_outputs(bound.outputs) for node in division.nodes]
    device = tensors[0].device if isinstance(tensors[0].device, str) else tensors[0].device[0]
    line = next((node.line for node in wanted if node.line is not None), None)
    buffers = [buffer_of(node) for node in bound.buffers]
    made = schedule_repro(outputs, buffers, device, show_location(line), bound.values)
    Path(path).write_text(write_repro(made), encoding="utf-8")
    return Path(path)


def dump_script(script: str, arguments: Sequence[str], folder: str) -> list[Path]:
    """Runs a script and writes each kernel that it compiles, equal ones once."""
    seen: set[UOp] = set()
    paths: list[Path] = []

    def keep(event: Event) -> None:
        kernel: Any = event["kernel"]
        if kernel.ast not in seen and not os.path.exists(os.path.join(folder, str(event["name"]) + SUFFIX)):
            seen.add(kernel.ast)
            made = kernel_repro(kernel.ast, kernel.optimised, kernel.device, 0, "")
            paths.append(Path(save_repro(made, folder, str(event["name"]))))

    before = sys.argv
    sys.argv = [script, *arguments]
    try:
        with Context(CACHE=0), subscribe(keep, kinds=("kernel-compiled",)):
            runpy.run_path(script, run_name="__main__")
    finally:
        sys.argv = before
    return paths
