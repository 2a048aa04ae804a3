"""The first call of a network is mostly LLVM's time. What a kernel's text does to keep it short: counters of far loops
are hidden from loop strength reduction, and the rounds of a transposition are fenced from each other. Neither may add
an instruction."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.backends.llvm_texts import record_texts
from tilewright import Context, Tensor
from tilewright.backends.cpu.code import llvm
from tilewright.backends.cpu.host.processors import this_processor

HIDDEN = re.compile(r"(%v\d+) = call (i\d+) @llvm\.expect\.i\d+\(i\d+ (%loop\d+)\.i, i\d+ 0\)")
FENCE = re.compile(r"  (%v\d+) = call (<\d+ x float>) @llvm\.arithmetic\.fence\.\w+\(<\d+ x float> (%v\d+)\)\n")


def without_fences(text: str) -> str:
    """The text with what a fence gives replaced by what it is given."""
    while (found := FENCE.search(text)) is not None:
        text = text[: found.start()] + text[found.end() :]
        text = re.sub(rf"{found[1]}\b", found[3], text)
    return text


def loops_inside(text: str, label: str) -> int:
    """How many loops lie in a loop, one in the other."""
    depth = deepest = 0
    body = text[text.index(f"\n{label}:") : text.index(f"\n{label}.end:")].splitlines()[2:]
    for line in body:
        depth += bool(re.fullmatch(r"loop\d+:", line)) - bool(re.fullmatch(r"loop\d+\.end:", line))
        deepest = max(deepest, depth)
    return deepest


def test_far_loops_alone_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor(np.ones((2, 24, 20, 20), np.float32)).realize()
    w = Tensor(np.ones((40, 24, 3, 3), np.float32)).realize()
    texts = record_texts(monkeypatch)
    with Context(CACHE=0):
        x.conv2d(w, padding=1).realize()
    loops = 0
    for text in texts:
        hidden = {found[3][1:] for found in HIDDEN.finditer(text)}
        for label in re.findall(r"^(loop\d+):$", text, re.MULTILINE):
            assert (label in hidden) == (loops_inside(text, label) > 2), label
            loops += 1
    assert loops > 3


@pytest.mark.skipif(this_processor().vector()[0] < 32, reason="16-byte registers transpose in one kind of round")
def test_a_fence_is_no_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Tensor(np.arange(4096, dtype=np.float32).reshape(64, 64)).realize()
    texts = record_texts(monkeypatch)
    with Context(CACHE=0):
        y = x.transpose(0, 1).contiguous().realize()
    assert np.array_equal(y.numpy(), np.arange(4096, dtype=np.float32).reshape(64, 64).T)
    (text,) = [text for text in texts if FENCE.search(text)]
    fenced, plain = [
        len(re.findall(r"^\t[a-z]", llvm.assembly(each), re.MULTILINE)) for each in (text, without_fences(text))
    ]
    assert fenced <= plain
