"""The examples run, with little data and few steps: a loss that is a number, and pictures that are PNG files."""

from __future__ import annotations

import importlib
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.models import STORIES, real_model
from tilewright import Tensor, nn
from tilewright.base.errors import FileError
from tilewright.llm.chat_model import open_model
from tilewright.llm.tokens.template import ChatTemplate

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that imports one of the examples, which import each other by name as scripts do."""
    known = set(sys.modules)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module
    for name in {path.stem for path in EXAMPLES.glob("*.py")} & (set(sys.modules) - known):
        del sys.modules[name]


@pytest.fixture
def few_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)

    def part(count: int) -> tuple[Tensor, Tensor]:
        images = generator.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8)
        return Tensor(images), Tensor((np.arange(count) % 10).astype(np.int32))

    monkeypatch.setattr(nn.datasets, "mnist", lambda: (*part(40), *part(20)))


def size_of(path: Path) -> tuple[int, int]:
    """Width and height of a PNG file, of which every chunk is checked."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    place, names, pixels = 8, [], b""
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        name, content = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        assert struct.unpack(">I", data[place + 8 + length : place + 12 + length])[0] == zlib.crc32(name + content)
        names.append(name)
        pixels += content if name == b"IDAT" else b""
        place += 12 + length
    assert names == [b"IHDR", b"IDAT", b"IEND"]
    width, height, _, kind = struct.unpack(">IIBB", data[16:26])
    assert len(zlib.decompress(pixels)) == height * (1 + width * (3 if kind == 2 else 1))
    return width, height


def test_autoencoder(example: Any, few_digits: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example("autoencoder").main(steps=4, batch=4, numbers=2, hidden=8, out=tmp_path)
    assert "4/4" in capsys.readouterr().out
    assert min(size_of(tmp_path / "autoencoder-loss.png")) > 100
    assert min(size_of(tmp_path / "autoencoder-digits.png")) > 28 * 5


def test_characters(example: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("the cat sat on the mat, " * 20)
    small = {"batch": 2, "context": 8, "width": 8, "layers": 1, "heads": 2}
    example("chars").main(tmp_path / "text", steps=4, letters=6, prompt="the ", out=tmp_path, **small)
    assert "4/4" in capsys.readouterr().out
    assert (tmp_path / "chars.txt").read_text().startswith("the ")
    assert len((tmp_path / "chars.txt").read_text()) == 10
    assert min(size_of(tmp_path / "chars-loss.png")) > 100


ASSEMBLY = """\
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
"""


def test_the_demo_shows_inner_loops(example: Any) -> None:
    demo = example("demo")
    assert [line.split()[0] for line in demo.inner_loop(ASSEMBLY).splitlines()] == [".LBB0_2:", "vmulps", "decq", "jne"]
    assert demo.inner_loop("kernel:\n\tretq\n").split() == ["kernel:", "retq"]
    assert demo.longest_block("a\nb:\n  c\n  d\ne:\n  f\n") == "b:\n  c\n  d"


@pytest.mark.slow
def test_digits_in_the_demo(
    example: Any, few_digits: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    demo = example("demo")
    monkeypatch.setattr(demo, "STEPS", 3)
    monkeypatch.setattr(demo, "PICTURES", tmp_path / "pictures")
    assert demo.learn(demo.Console())
    told = capsys.readouterr().out
    assert "40 digits to learn from, 20 to test with" in told
    assert "3/3" in told
    assert "of the unseen digits are classified correctly" in told
    assert min(size_of(tmp_path / "pictures" / "mnist-loss.png")) > 100
    weights = nn.state.safe_load(tmp_path / "pictures" / "mnist.safetensors")
    assert len(weights) > 10


def test_without_data_the_demo_says_so(
    example: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = example("demo")

    def fail(**options: Any) -> None:
        raise FileError("mnist", "no place has it [at all]", "with a network, try again")

    monkeypatch.setattr(demo.mnist, "main", fail)
    assert not demo.learn(demo.Console())
    told = capsys.readouterr().out
    assert "There are no digits to learn from." in told
    assert "no place has it [at all]" in told
    assert "with a network, try again" in told


def test_a_model_in_the_demo(
    example: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """stories260K instead of SmolLM2, which has no answer; and no model at all."""
    demo = example("demo")

    def open_stories() -> Any:
        model = open_model(str(STORIES / "stories260K.bin"), context=64)
        model.template = ChatTemplate("{{ messages[0].content }}")
        return model

    monkeypatch.setattr(demo, "open_model", open_stories)
    monkeypatch.setattr(demo, "QUESTION", "Once upon a time, there was a little girl named")
    monkeypatch.setattr(demo, "EXPECTED", "Lily")
    assert demo.answer(demo.Console())
    told = capsys.readouterr().out
    assert "Lily" in told
    assert "tokens/s" in told
    monkeypatch.setattr(demo, "EXPECTED", "Paris")
    assert not demo.answer(demo.Console())
    monkeypatch.setattr(demo, "open_model", lambda: open_model(str(tmp_path / "none.gguf")))
    assert not demo.answer(demo.Console())
    assert "There is no language model to ask." in capsys.readouterr().out


def test_lora_learns_the_answers_alone(example: Any) -> None:
    lora = example("lora")
    inputs, targets, counted = lora.make_batch([([5, 6, 7, 8, 9], 3), ([1, 2, 3], 2)])
    assert inputs.tolist() == [[5, 6, 7, 8], [1, 2, 0, 0]]
    assert targets.tolist() == [[6, 7, 8, 9], [2, 3, 0, 0]]
    assert counted.tolist() == [[0, 0, 1, 1], [0, 1, 0, 0]]


@pytest.mark.slow
def test_lora_teaches_smollm2(example: Any) -> None:
    lora = example("lora")
    chat = lora.open_model(str(real_model("smollm2.gguf")))
    losses = lora.train(chat, lora.LESSONS, 6, 2e-3, lora.Console())
    assert losses[-1] < losses[0] / 2
