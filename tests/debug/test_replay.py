"""Repro files: what is written is read back as the same nodes and bytes, replays on any device, and a kernel whose text
changes is told. VERIFY=1 writes one for a kernel that differs."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from typer.testing import CliRunner

from tilewright import Context, Tensor, Variable, jit
from tilewright.base.errors import KernelDifferenceError, ParseError
from tilewright.cli.main import app
from tilewright.debug import dump, load_repro, read_repro, replay
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.engine.planning.plan import forget_schedules
from tilewright.graph.ops import Ops
from tilewright.graph.text.repro import write_repro
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import map_graph
from tilewright.kernel import optimise

ROWS = Variable("rows", 1, 3)


def update_rows(x: Tensor, start: int) -> Tensor:
    memory = x.contiguous().realize()
    memory[start : start + 1] = x[:1] * 5
    return memory


PROGRAMS = {
    "softmax": lambda x: (x * 3).softmax(1),
    "gather": lambda x: x[Tensor([2, 0, 1])],
    "halves": lambda x: x.half().sum(0),
    "update": lambda x: x.contiguous().realize().assign(x + 1),
    "integers": lambda x: x.int() // 3,
    "constants": lambda x: Tensor.arange(7) * 2,
    "one": lambda x: x.sum(),
    "symbolic": lambda x: (x[: ROWS.bind(3)] * 2 + ROWS.bind(3)).softmax(0),
    "symbolic buffer": lambda x: (x[: ROWS.bind(2)] * 2).realize().sum(0) + Tensor.arange(3),
    "symbolic update": lambda x: update_rows(x, ROWS.bind(2)),
}


def make_input() -> Tensor:
    return Tensor((np.arange(12, dtype=np.float32).reshape(4, 3) % 5) - 1).realize()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_schedule_replays(name: str, tmp_path: Path) -> None:
    path = dump(tmp_path / "a.repro", PROGRAMS[name](make_input()))
    repro = load_repro(str(path))
    again = read_repro(write_repro(repro))
    assert again == repro
    assert again.graph is repro.graph
    for device in ("CPU", "PYTHON"):
        outcome = replay(repro, device)
        assert outcome.agrees, (device, outcome.text)


def test_a_difference_is_found(tmp_path: Path) -> None:
    repro = load_repro(str(dump(tmp_path / "a.repro", make_input() * 3 + 1)))
    with broken_simplify():
        outcome = replay(repro)
    assert outcome.kind == "differs"
    assert outcome.difference is not None
    assert outcome.difference.coordinates == (0, 0)
    assert (outcome.difference.got, outcome.difference.want) == (-3.0, -2.0)


def test_a_sharded_schedule_replays(tmp_path: Path) -> None:
    x = make_input().shard(("CPU:0", "CPU:1"), 0)
    repro = load_repro(str(dump(tmp_path / "a.repro", (x * 2).sum(0))))
    assert replay(repro).agrees
    assert replay(repro, "PYTHON").agrees


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tilewright repro 1\n",
        "tilewright repro 1\nkind: kernel\ndevice: CPU\n",
        "tilewright repro 1\nkind: schedule\ndevice: CPU\n[graph]\n%0 = CONST float32 1.0\n",
        "tilewright repro 1\nkind: schedule\ndevice: CPU\n[graph]\n%0 = CONST int32 1\n%1 = SINK void %0\n[other]\n",
        "tilewright repro 1\nkind: kernel\ndevice: CPU\nvalues: n=5\n[graph]\n"
        '%0 = VARIABLE index ("n", 1, 4)\n%1 = SINK void %0\n',
    ],
)
def test_a_text_that_is_no_repro(text: str) -> None:
    with pytest.raises(ParseError):
        read_repro(text)


def test_input_bytes_must_fit(tmp_path: Path) -> None:
    text = dump(tmp_path / "a.repro", make_input() + 1).read_text()
    with pytest.raises(ParseError, match="not 44"):
        read_repro(text.replace("[input 0 float32 12]", "[input 0 float32 11]"))


SCRIPT = "from tilewright import Tensor\nprint((Tensor([1.0, 2.0, 3.0]).realize() * 2).exp().tolist())\n"


def test_a_corpus_tells_a_changed_text(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    folder = str(tmp_path / "corpus")
    runner = CliRunner()
    assert runner.invoke(app, ["dump", folder, str(script)]).exit_code == 0
    files = list(Path(folder).iterdir())
    assert files
    assert runner.invoke(app, ["replay", folder, "--update"]).exit_code == 0
    same = runner.invoke(app, ["replay", folder])
    assert same.exit_code == 0
    assert "agrees; text same" in same.output
    files[0].write_text(files[0].read_text().replace("fmul", "fadd"))
    changed = runner.invoke(app, ["replay", folder, "--text"])
    assert changed.exit_code == 1
    assert "text changed" in changed.output
    assert runner.invoke(app, ["replay", folder, "--device", "PYTHON"]).exit_code == 0
    assert runner.invoke(app, ["replay", str(tmp_path / "nothing")]).exit_code == 2


# ---------------------------------------------------------------- VERIFY=1


def one_to_zero(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
    return node.replace(arg=0.0) if node.op is Ops.CONST and node.arg == 1.0 else None


def greatest_length(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
    is_symbolic = node.op is Ops.RANGE and src[0].op is Ops.VARIABLE
    return node.with_src((index_const(int(src[0].vmax)),)) if is_symbolic else None


def broken_simplify(change=one_to_zero) -> mock._patch:  # type: ignore[no-untyped-def, type-arg]
    """The kernel stage ends with a pass that turns 1.0 into 0.0 wherever a transform may run: the emulator's plain
    kernels, whose opts are stated to be none, are spared."""

    def run(state: optimise.Optimisation) -> None:
        if state.info.opts_to_apply is None:
            state.sink = map_graph(state.sink, change)

    steps = [step if step.name != "simplify" else step._replace(run=run) for step in optimise.PASSES]
    forget_schedules()
    forget_kernels()
    return mock.patch.object(optimise, "PASSES", tuple(steps))


def check_verified(run, tmp_path: Path, line: int) -> None:  # type: ignore[no-untyped-def]
    with Context(VERIFY=1, CACHE=0, TILEWRIGHT_STATE_DIR=str(tmp_path)), broken_simplify():
        with pytest.raises(KernelDifferenceError) as caught:
            run()
        text = str(caught.value)
        assert "first at element 0 of buffer 0, at (0, 0) of loops" in text
        assert caught.value.location is not None
        assert caught.value.location[0] == __file__
        assert caught.value.location[1] == line
        repro = load_repro(caught.value.repro)
        assert repro.kind == "kernel"
        assert replay(repro).kind == "differs"
    forget_kernels()
    assert replay(repro).agrees


def test_verify_names_element_line_and_repro(tmp_path: Path) -> None:
    x = make_input()

    def run() -> None:
        (x * 3 + 1).realize()

    check_verified(run, tmp_path, run.__code__.co_firstlineno + 1)


def test_verify_inside_jit(tmp_path: Path) -> None:
    x = make_input()

    @jit
    def step(x: Tensor) -> Tensor:
        return (x * 3 + 1).realize()

    check_verified(lambda: step(x), tmp_path, step.function.__code__.co_firstlineno + 2)


def test_verify_inside_sharding(tmp_path: Path) -> None:
    x = make_input().shard(("CPU:0", "CPU:1"), 0)

    def run() -> None:
        (x * 3 + 1).realize()

    check_verified(run, tmp_path, run.__code__.co_firstlineno + 1)


def test_verify_tries_other_values_of_a_variable(tmp_path: Path) -> None:
    """A loop of the greatest length is right for that value alone; the file has the value that shows it."""
    x = make_input()
    settings = Context(VERIFY=1, CACHE=0, TILEWRIGHT_STATE_DIR=str(tmp_path))
    with settings, broken_simplify(greatest_length), pytest.raises(KernelDifferenceError, match="differ, rows = 1, "):
        x[: ROWS.bind(3)].sum(0).realize()
    (path,) = (tmp_path / "repros").iterdir()
    repro = load_repro(str(path))
    assert repro.values == {"rows": 1}
    with broken_simplify(greatest_length):
        assert replay(repro).kind == "differs"
    forget_kernels()
    assert replay(repro).agrees
