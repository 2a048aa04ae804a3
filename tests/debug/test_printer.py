"""DEBUG prints what it says at each level, for the process, a block or a thread, and nothing anywhere else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tilewright import Context, Tensor
from tilewright.base import events
from tilewright.base.config import options, set_option

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """\
import sys
from tilewright import Tensor
x = Tensor([float(i) for i in range(48 * 80)]).reshape(48, 80).realize()
y = x @ x.T
z = (y - 1).softmax(axis=1) + y.max()
plan = z.schedule()
print(*[item.ast.arg.name for item in plan.items])
z.realize()
print("debug" if "tilewright.debug" in sys.modules else "no debug")
"""
PRODUCT_LINE = 4


def run_script(folder: Path, level: int, text: str = SCRIPT) -> tuple[list[str], str]:
    """The lines of stdout and all of stderr of a script in a process of its own, with the folder's cache."""
    (folder / "script.py").write_text(text)
    environment = {**os.environ, "DEBUG": str(level), "TILEWRIGHT_CACHE_DIR": str(folder / "cache")}
    environment["PYTHONPATH"] = str(ROOT)
    finished = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines(), finished.stderr


# What the first level to print it adds; `{name}` is the true name of the kernel that holds the matrix product.
BY_LEVEL = {
    1: (
        r"^device +CPU: .*cores",
        r"^cache +schedule miss [23456] items in",
        r"^cache +schedule hit",
        r"^cache +program miss [0-9a-f]{12}$",
        r"^caches +schedule \d hits \d misses, program \d hits [2-9] misses$",
    ),
    2: (
        rf"^run +{{name}} +CPU +[\d.]+ [um]?s +[\d.]+ GB/s +[\d.]+ GFLOP/s script\.py:{PRODUCT_LINE}$",
        r"^compiled {name} kernel [\d.]+ [um]?s, codegen .*, render .*, cache .*, compile .*, load .* = [\d.]+ [um]?s$",
        r"^total +[23456] items +[\d.]+ [um]?s",
        r"^stages +bind .* schedule .* kernel .* compile",
    ),
    3: (
        rf"^schedule 0 {{name}} on CPU: s0 float32\[3840\] -> s1 float32\[2304\]  script\.py:{PRODUCT_LINE}$",
        r"^kernel +{name} axes (?=.*:REDUCE\().*; opts .+",
        r"^ +p0\[.*\] = reduce\(p1\[",
    ),
    4: (r"^---- source of {name}$", r"^define void @kernel\("),
    5: (
        r"^---- tensor graph 0",
        r"^---- schedule, after pass prepare_graph in [\d.]+ [um]?s",
        r"^---- kernel, after pass apply_opts in [\d.]+ [um]?s: 0",
        r"^---- codegen, after pass decompose in [\d.]+ [um]?s",
        r"^%\d+ = REDUCE_AXIS float32 %\d+ \(Ops.ADD, \(2,\)\)",
        r"^---- kernel {name}, as scheduled$",
        r"^---- kernel {name}, optimised$",
        r"^%\d+ = SINK void .*KernelInfo\(\"{name}\"",
        r"^program {name}\(p0: float32\[2304\] written, p1: float32\[3840\] read\)",
    ),
    6: (r"^---- assembly of {name}$", r"^\tret"),
}


@pytest.mark.parametrize("level", [0, 3, 6, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2, 4, 5))])
def test_each_level_adds_to_the_one_below(tmp_path: Path, level: int) -> None:
    (names, loaded), printed = run_script(tmp_path, level)
    assert (printed == "", loaded == "no debug") == (level == 0, level == 0)
    name = names.split()[0]
    for least, patterns in BY_LEVEL.items():
        for pattern in patterns:
            found = re.search(pattern.replace("{name}", re.escape(name)), printed, re.MULTILINE)
            assert (found is not None) == (least <= level), f"{pattern} at DEBUG={level}:\n{printed[:4000]}"


def test_a_second_process_finds_every_program_on_disk(tmp_path: Path) -> None:
    run_script(tmp_path, 2)
    _, printed = run_script(tmp_path, 2)
    assert "program miss" not in printed
    assert printed.count("program hit") >= 2
    compiled = [line for line in printed.splitlines() if line.startswith("compiled")]
    assert compiled
    assert not any(re.search(r"\bcompile\b", line) for line in compiled), "nothing was left for the compiler to do"
    assert "\x1b" not in printed, "colours are for terminals"


def test_colours_are_for_terminals() -> None:
    pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
    ours, theirs = pty.openpty()
    environment = {**os.environ, "DEBUG": "2", "PYTHONPATH": str(ROOT)}
    environment.pop("NO_COLOR", None)
    program = "from tilewright import Tensor; (Tensor([1.0, 2.0]) + 1).realize()"
    subprocess.run([sys.executable, "-c", program], env=environment, stderr=theirs, check=True)
    os.close(theirs)
    seen = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert re.search("\x1b\\[1mrun +\x1b\\[0m", seen)


# ---------------------------------------------------------------- blocks, threads, the process


def realize_here() -> tuple[str, int]:
    """Run a kernel of this line; where the line is, as the printer writes it."""
    tensor = Tensor([1.0, 2.0]) + 123.75  # the line; no other test has this structure, whose first line is kept
    tensor.realize()
    code = realize_here.__code__
    return os.path.relpath(code.co_filename), code.co_firstlineno + 2


def runs_of(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("run")]


def test_a_block_prints_inside_alone(capsys: pytest.CaptureFixture[str]) -> None:
    realize_here()
    with Context(DEBUG=2):
        path, number = realize_here()
        assert events.listeners
    realize_here()
    (line,) = runs_of(capsys)
    assert line.endswith(f"{path}:{number}")
    assert events.listeners == {}


def test_blocks_nest_and_the_inner_one_rules(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEBUG=2):
        with Context(DEBUG=0):
            realize_here()
        assert runs_of(capsys) == []
        with Context(DEBUG=1):
            realize_here()
        assert runs_of(capsys) == []
        realize_here()
    assert len(runs_of(capsys)) == 1
    assert events.listeners == {}


def test_level_one_leaves_kernels_untimed() -> None:
    with Context(DEBUG=1):
        assert "kernel-run" not in events.listeners
        assert "schedule" in events.listeners
    assert events.listeners == {}


def test_a_block_ends_also_when_an_error_passes() -> None:
    with pytest.raises(KeyError), Context(DEBUG=4):
        raise KeyError
    assert events.listeners == {}


def test_a_block_speaks_for_its_own_thread(capsys: pytest.CaptureFixture[str]) -> None:
    with Context(DEBUG=2):
        thread = threading.Thread(target=realize_here)
        thread.start()
        thread.join()
        assert capsys.readouterr().err == ""


def test_the_process_can_be_switched_on_and_off(capsys: pytest.CaptureFixture[str]) -> None:
    before = options.DEBUG
    set_option("DEBUG", 2)
    try:
        realize_here()
        assert len(runs_of(capsys)) == 1
        thread = threading.Thread(target=realize_here)
        thread.start()
        thread.join()
        assert len(runs_of(capsys)) == 1
        set_option("DEBUG", 0)
        realize_here()
        assert capsys.readouterr().err == ""
        assert events.listeners == {}
    finally:
        set_option("DEBUG", before)


# ---------------------------------------------------------------- lines of single events


@pytest.mark.parametrize(
    ("kind", "fields", "line"),
    [
        (
            "replay",
            {"name": "step", "kernels": 3, "seconds": 0.002, "operations": 4_000_000, "bytes": 10_000_000},
            r"^jit +step +2\.00 ms +5\.00 GB/s +2\.00 GFLOP/s 3 kernels replayed$",
        ),
        (
            "copy",
            {"source": "CPU", "target": "PYTHON", "bytes": 32_000, "seconds": 1e-5, "location": ("a/b/c.py", 7)},
            r"^copy +CPU to PYTHON +10\.0 us +3\.20 GB/s +0\.00 GFLOP/s 32\.0 kB  a/b/c\.py:7$",
        ),
        ("warning", {"message": "the disk is full", "location": None}, r"^warning +the disk is full$"),
        ("warning", {"message": "the disk is full"}, r"^warning +the disk is full$"),
        ("cache-hit", {"cache": "program", "key": "0123456789abcdef"}, r"^cache +program hit 0123456789ab$"),
    ],
)
def test_the_line_of_an_event(
    capsys: pytest.CaptureFixture[str], kind: str, fields: dict[str, object], line: str
) -> None:
    with Context(DEBUG=2):
        events.emit(kind, **fields)
    assert re.match(line, capsys.readouterr().err.rstrip("\n"))


def test_every_printed_kind_exists() -> None:
    assert set(events.PRINTED) <= set(events.KINDS)
