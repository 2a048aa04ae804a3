"""`explain` shows every stage of an expression as it is, runs nothing, leaves the caches ready; the demo uses it."""

from __future__ import annotations

import io
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tilewright import Context, GlobalCounters, Tensor, jit
from tilewright.base.errors import RealizeError
from tilewright.base.events import Event, subscribe
from tilewright.debug import describe, explain, watch_runs
from tilewright.debug.layout import machine_code
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.graph.text.parse import parse

ROOT = Path(__file__).resolve().parents[2]


def arrays() -> list[np.ndarray]:
    generator = np.random.default_rng(3)
    return [generator.standard_normal(shape, dtype=np.float32) for shape in ((48, 64), (64, 32), (32,))]


def dense() -> Tensor:
    x, w, b = map(Tensor, arrays())
    return (x @ w + b).relu()


def test_every_stage_of_one_kernel() -> None:
    forget_kernels()
    with Context(CACHE=0):
        y = dense()
        explanation = explain(y)
    (kernel,) = explanation.kernels
    (item,) = explanation.plan.items
    assert item.ast is not None
    assert parse(explanation.graph) is y.uop, "the text of the graph is the graph"
    assert kernel.name == item.ast.arg.name
    assert kernel.line == y.uop.line
    assert kernel.location.startswith("tests/debug/test_explain.py:")
    assert f"0 {kernel.name} on CPU: " in explanation.items[0]
    assert "reduce(p1[" in kernel.expression
    assert math.prod(axis.size for axis in kernel.axes) == 48 * 64 * 32, "axes are split, never lost"
    assert kernel.opts
    assert kernel.operations >= 2 * 48 * 64 * 32
    assert kernel.bytes_moved == 4 * (48 * 64 + 64 * 32 + 32 + 48 * 32)
    assert kernel.program.startswith(f"program {kernel.name}(")
    assert "define void @kernel(" in kernel.source
    assert re.search(r"^\s+ret", kernel.assembly, re.MULTILINE)
    assert {"kernel", "codegen", "render", "compile", "load"} <= set(kernel.stage_times)
    assert {"bind", "schedule", "compile"} <= set(explanation.stage_times)
    assert min(explanation.stage_times.values()) > 0


def test_nothing_runs_until_it_is_realised_and_then_it_only_runs() -> None:
    y = dense()
    launched = GlobalCounters.kernel_count
    explain(y)
    assert GlobalCounters.kernel_count == launched
    seen: list[Event] = []
    with subscribe(seen.append, kinds=("schedule", "kernel-compiled")):
        result = y.numpy()
    assert [event.kind for event in seen] == ["schedule"]
    assert seen[0]["cached"]
    x, w, b = arrays()
    np.testing.assert_allclose(result, np.maximum(x @ w + b, 0), rtol=1e-4, atol=1e-5)


def test_a_realised_tensor_has_nothing_to_explain() -> None:
    y = dense().realize()
    with pytest.raises(RealizeError, match="before it is realised"):
        explain(y)


def test_several_tensors_and_kernels_are_explained_together() -> None:
    y = dense()
    explanation = explain(y.sum(axis=0), y.max())
    assert len(explanation.kernels) == len(explanation.plan.items) >= 2
    assert len(explanation.items) == len(explanation.plan.items)


def test_unoptimised_kernels_show_no_opts() -> None:
    with Context(NOOPT=1):
        (kernel,) = explain(dense()).kernels
    assert kernel.opts == ()
    assert sorted(axis.size for axis in kernel.axes) == [32, 48, 64]


def test_the_emulator_has_no_machine_code_and_says_so() -> None:
    (kernel,) = explain(Tensor([1.0, 2.0], device="PYTHON") + 1).kernels
    assert kernel.device == "PYTHON"
    assert kernel.source.startswith(f"program {kernel.name}(")
    assert "no machine code" in kernel.assembly


def test_it_prints_itself_as_text_and_in_panels() -> None:
    explanation = explain(dense())
    (kernel,) = explanation.kernels
    text = explanation.text()
    for part in (explanation.graph.rstrip(), kernel.source.rstrip(), kernel.program.rstrip(), kernel.expression):
        assert part in text
    file = io.StringIO()
    explanation.print(Console(file=file, width=200), lines=5)
    printed = file.getvalue()
    assert "\x1b" not in printed
    for part in ("graph", "schedule", kernel.name, "opts: ", "UPCAST(", "machine code", "more lines", "compile"):
        assert part in printed


def test_runs_are_watched() -> None:
    y = dense()
    with watch_runs() as runs:
        y.realize()
    dense().realize()
    (run,) = runs
    assert run.device == "CPU"
    assert run.seconds > 0
    assert run.operations >= 2 * 48 * 64 * 32
    assert run.location.startswith("tests/debug/test_explain.py:")
    assert re.fullmatch(r"[\d.]+ GB/s, [\d.]+ GFLOP/s", run.speed)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (describe.show_seconds(1.234e-7), "0.12 us"),
        (describe.show_seconds(9.994e-6), "9.99 us"),
        (describe.show_seconds(9.996e-6), "10.0 us"),
        (describe.show_seconds(9.9951e-4), "1.00 ms"),
        (describe.show_seconds(0.1234), "123 ms"),
        (describe.show_seconds(62.5), "62.5 s"),
        (describe.show_bytes(512), "512 B"),
        (describe.show_bytes(32_768), "32.8 kB"),
        (describe.show_bytes(5_000_000_000_000), "5000 GB"),
        (describe.giga_per_second(3_000_000, 0.001), "3.00"),
        (describe.giga_per_second(1, 0.0), "-"),
        (describe.show_stage_times({"load": 1_000_000, "kernel": 2_000_000}), "kernel 2.00 ms, load 1.00 ms = 3.00 ms"),
        (describe.show_location(None), "(no line)"),
        (describe.show_location(("<stdin>", 3)), "<stdin>:3"),
        (describe.show_location(("/somewhere/else/main.py", 3)), "else/main.py:3"),
        (describe.show_location((os.path.join(os.getcwd(), "a", "b.py"), 3)), "a/b.py:3"),
    ],
)
def test_words_for_numbers_and_places(made: str, text: str) -> None:
    assert made == text


ASSEMBLY = """\
\t.text
kernel:                                 # @kernel
\tmovq\t(%rdi), %rax
.LBB0_1:                                # =>This Inner Loop Header: Depth=1
\tincq\t%rcx
\tjne\t.LBB0_1
.LBB0_2:
\tvmulps\t%zmm0, %zmm1, %zmm2
\tdecq\t%rcx
\tjne\t.LBB0_2
\tretq
\t.size\tkernel, 12
"""


def test_machine_code_is_cut_to_what_runs() -> None:
    assert machine_code(ASSEMBLY).splitlines()[:2] == ["kernel:", "        movq    (%rdi), %rax"]
    assert ".size" not in machine_code(ASSEMBLY)


def test_the_demo_agrees_with_numpy(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache")}
    finished = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo.py"), "--no-train", "--no-talk"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    for part in (
        "REDUCE_AXIS float32",
        "schedule",
        "role",
        "program reduce_",
        "phi <",
        "equal to NumPy",
        "jit: ",
    ):
        assert part in finished.stdout
    assert finished.stderr == ""
    assert list(tmp_path.iterdir()) == [], "it leaves nothing behind"


# ---------------------------------------------------------------- lines of equal expressions


def _on_one_line(x: Tensor) -> Tensor:
    return ((x + 1).contiguous().exp().contiguous() * 2).sum(0)


def _on_three_lines(x: Tensor) -> Tensor:
    first = (x + 1).contiguous()
    second = first.exp().contiguous()
    return (second * 2).sum(0)


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_a_kernel_has_the_line_of_the_program_that_runs_it(device: str) -> None:
    """An equal expression was shown with the line of the program that wrote it first."""

    def lines_of(program: Callable[[Tensor], Tensor]) -> list[int]:
        x = Tensor.rand(3, 4, device=device).realize()
        with watch_runs() as runs:
            program(x).realize()
        scheduled = [item.line for item in program(x).schedule().items]
        assert scheduled == [run.line for run in runs]
        return [run.line[1] for run in runs if run.line]

    one, three = (program.__code__.co_firstlineno for program in (_on_one_line, _on_three_lines))
    for _ in range(2):
        assert lines_of(_on_one_line) == [one + 1] * 3
        assert lines_of(_on_three_lines) == [three + 1, three + 2, three + 3]


def test_sharded_kernels_have_the_line_of_the_program_that_runs_them() -> None:
    x = Tensor.rand(4, 4).shard(("CPU", "CPU:1"), 0).realize()
    found = []
    for program in (_on_one_line, _on_three_lines, _on_one_line):
        with watch_runs() as runs:
            program(x).realize()
        found.append({run.line[1] - program.__code__.co_firstlineno for run in runs if run.line})
    assert found == [{1}, {1, 2, 3}, {1}]


def test_the_kernels_of_a_replay_are_watched_too() -> None:
    """A replay was watched only where somebody listened to replays as well."""
    step = jit(lambda x: _on_three_lines(x).realize())
    x = Tensor.rand(3, 4).realize()
    counts = []
    for _ in range(5):
        with watch_runs() as runs:
            step(x)
        counts.append(len(runs))
    assert counts == [3] * 5
