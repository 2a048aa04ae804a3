"""The attention of one query per head as one kernel: on the emulator, with the facts of a card, against softmax of all
scores; over a cache whose length is symbolic; and its gradient, which goes through other operations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.computed import computed
from tests.kernel.emulated_card import NAME, CardDriver, emulated_card
from tilewright import Tensor, Variable, dtypes, jit
from tilewright.backends.cuda.device import cuda_target
from tilewright.backends.cuda.dot import render_program
from tilewright.backends.cuda.nvrtc import compile_text, toolchain
from tilewright.base.dtype import DType
from tilewright.base.events import subscribe
from tilewright.codegen.c_style.launch import plan_launch
from tilewright.codegen.pipeline import lower
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp
from tilewright.kernel.optimise import optimise
from tilewright.runtime.device import Unavailable
from tilewright.tensor.families.networks import row_attention

KERNEL = "attention_row"
generator = np.random.default_rng(21)


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return generator.standard_normal(shape).astype(np.float32)


def expected(query: Any, key: Any, value: Any, mask: Any = 0.0) -> np.ndarray[Any, Any]:
    key, value = (each.repeat(query.shape[1] // each.shape[1], 1) for each in (key, value))
    scores = query @ key.swapaxes(-1, -2) / np.sqrt(query.shape[-1]) + mask
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        found: np.ndarray[Any, Any] = weights / weights.sum(-1, keepdims=True) @ value
    return found


def given(array: Any, dtype: DType = dtypes.float32) -> Tensor:
    return Tensor(array, device=NAME).cast(dtype).realize()


def kernels(card: CardDriver) -> int:
    return sum(program.name == KERNEL for program in card.programs)


SHAPES = {  # batch, heads, heads of keys, features, the most keys, dtype
    "one head": (1, 1, 1, 4, 3, dtypes.float32),
    "shared heads": (2, 6, 2, 32, 70, dtypes.float32),
    "a warp for each key": (1, 2, 1, 128, 40, dtypes.float32),
    "halves": (1, 4, 2, 64, 150, dtypes.float16),
    "features that are no power of two": (1, 2, 2, 96, 33, dtypes.bfloat16),
}


@pytest.mark.parametrize("name", SHAPES)
def test_lengths_that_divide_nothing(name: str) -> None:
    """One kernel for all lengths of a cache, which it reads in place."""
    batch, heads, kv_heads, features, most, dtype = SHAPES[name]
    query, key, value = numbers(batch, heads, 1, features), *(numbers(batch, kv_heads, most, features) for _ in "kv")
    with emulated_card() as card:
        asked, *held = (given(each, dtype) for each in (query, key, value))
        count = len(card.programs)
        exact = [np.array(each.float().numpy()) for each in (asked, *held)]
        for length in sorted({1, 2, min(31, most), most - 1, most}):
            seen = [each[:, :, : Variable("n", 1, most).bind(length)] for each in held]
            found = asked.scaled_dot_product_attention(*seen, enable_gqa=True).float().numpy()
            want = expected(exact[0], *(each[:, :, :length] for each in exact[1:]))
            np.testing.assert_allclose(found, want, atol=1e-5 if dtype is dtypes.float32 else 2e-2)
        assert kernels(card) == 1
        assert sum("reduce" in program.name for program in card.programs[count:]) == 0


@pytest.fixture(params=[1, 8], ids=["whole heads", "shared heads"])
def splits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many work-groups share the keys of a head, where there are 37."""
    monkeypatch.setattr(row_attention, "MIN_SPLIT_KEYS", 37 // request.param)
    return int(request.param)


def test_work_groups_that_share_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few keys some have none. A second kernel adds up their parts, in their order."""
    query, key, value = numbers(2, 2, 1, 64), numbers(2, 1, 600, 64), numbers(2, 1, 600, 64)
    monkeypatch.setattr(row_attention, "MIN_SPLIT_KEYS", 128)
    with emulated_card() as card:
        asked, *held = (given(each) for each in (query, key, value))
        for length in (1, 127, 128, 129, 599):
            seen = [each[:, :, : Variable("n", 1, 600).bind(length)] for each in held]
            found = asked.scaled_dot_product_attention(*seen, enable_gqa=True).numpy()
            want = expected(query, key[:, :, :length], value[:, :, :length])
            np.testing.assert_allclose(found, want, atol=1e-5)
        (first, second) = (program for program in card.programs if program.name.startswith("attention"))
        assert [math.prod(plan_launch(each).grid) for each in (first, second)] == [4 * 4, 4]


def test_masks_and_rows_without_a_key(splits: int) -> None:
    query, key, value = numbers(2, 4, 1, 16), numbers(2, 2, 37, 16), numbers(2, 2, 37, 16)
    kept = generator.random((2, 1, 1, 37)) < 0.5
    kept[1] = False
    added = numbers(4, 1, 37)
    with emulated_card() as card:
        operands = [given(each) for each in (query, key, value)]
        found = operands[0].scaled_dot_product_attention(*operands[1:], Tensor(kept, device=NAME), enable_gqa=True)
        want = expected(query, key, value, np.where(kept, 0, -np.inf))
        np.testing.assert_allclose(found.numpy(), want, atol=1e-5)
        found = operands[0].scaled_dot_product_attention(*operands[1:], given(added), enable_gqa=True)
        np.testing.assert_allclose(found.numpy(), expected(query, key, value, added), atol=1e-5)
        assert kernels(card) == 2


def test_a_window_over_a_symbolic_length() -> None:
    query, key, value = numbers(1, 2, 1, 8), numbers(1, 2, 50, 8), numbers(1, 2, 50, 8)
    with emulated_card() as card:
        asked, *held = (given(each) for each in (query, key, value))
        for length in (1, 7, 33, 50):
            size = Variable("n", 1, 50).bind(length)
            window = Tensor.arange(size, device=NAME) > size - 6
            seen = [each[:, :, :size] for each in held]
            found = asked.scaled_dot_product_attention(*seen, window.unsqueeze(0)).numpy()
            mask = np.where(np.arange(length) > length - 6, 0, -np.inf)
            np.testing.assert_allclose(
                found, expected(query, key[:, :, :length], value[:, :, :length], mask), atol=1e-5
            )
        assert kernels(card) == 1


def test_scores_of_every_size() -> None:
    """Scores far apart do not overflow, infinite and undefined ones are what softmax makes of them."""
    query, key, value = np.ones((1, 3, 1, 4), np.float32), numbers(1, 3, 9, 4), numbers(1, 3, 9, 4)
    key[0, 0] *= 1e4
    key[0, 1, 4] = -np.inf
    key[0, 2, 5] = np.nan
    with emulated_card():
        found = given(query).scaled_dot_product_attention(given(key), given(value)).numpy()
    want = expected(query, key, value)
    np.testing.assert_allclose(found[0, :2], want[0, :2], atol=1e-5)
    assert np.isnan(found[0, 2]).all()


def test_a_replayed_step_stores_and_attends() -> None:
    """The kernel is given the length of the call at every launch, and reads what the call has just stored."""
    key, query = numbers(1, 2, 40, 8), numbers(1, 4, 1, 8)
    with emulated_card():
        memory = Tensor.zeros(1, 2, 40, 8, device=NAME).contiguous().realize()

        def step(query: Tensor, new: Tensor, position: int) -> Tensor:
            memory[:, :, position : position + 1] = new
            seen = memory[:, :, : position + 1]
            return query.scaled_dot_product_attention(seen, seen * 1.0, enable_gqa=True).realize()

        def in_place(query: Tensor, new: Tensor, position: int) -> Tensor:
            memory[:, :, position : position + 1] = new
            seen = memory[:, :, : position + 1]
            return query.scaled_dot_product_attention(seen, seen, enable_gqa=True).realize()

        for function in (step, in_place):
            run = jit(function, symbolic={"position": (0, 39)})
            for position in (0, 1, 2, 3, 4, 5, 6, 7, 32, 33, 39, 3):
                found = run(given(query), given(key[:, :, position : position + 1]), position).numpy()
                held = memory.numpy()[:, :, : position + 1]
                np.testing.assert_allclose(held[:, :, position], key[:, :, position])
                np.testing.assert_allclose(found, expected(query, held, held), atol=1e-5)


def test_gradients_are_those_of_softmax(splits: int) -> None:
    arrays = [numbers(1, 4, 1, 8), numbers(1, 2, 20, 8), numbers(1, 2, 20, 8), numbers(1, 20)]
    slope = numbers(1, 4, 1, 8)
    results = []
    with emulated_card() as card:
        for device in (NAME, "CPU"):
            query, *held, mask = (Tensor(each, device=device).realize() for each in arrays)
            length = Variable("n", 1, 20).bind(13)
            seen = [each[:, :, :length] for each in held]
            found = query.scaled_dot_product_attention(*seen, mask[:, :length], enable_gqa=True)
            gradients = found.gradient(query, *held, mask, gradient=Tensor(slope, device=device))
            results.append(computed([found, *gradients]))
        assert kernels(card) == 1
    for ours, theirs in zip(*results):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 2, 1, 6), (1, 2, 1, 80 * 7)], ids=str)
def test_heads_without_whole_vectors_go_another_way(shape: tuple[int, ...]) -> None:
    query, key = numbers(*shape), numbers(1, 2, 5, shape[-1])
    with emulated_card() as card:
        found = given(query).scaled_dot_product_attention(given(key), given(key)).numpy()
        np.testing.assert_allclose(found, expected(query, key, key), atol=1e-5)
        assert kernels(card) == 0


def test_the_text_for_a_card_loads_whole_vectors() -> None:
    """32 heads of 128 features over a cache of 1024 keys: 16 bytes of a key at a time, for each of four keys."""
    asts: list[Any] = []
    with emulated_card(), subscribe(lambda event: asts.append(event["kernel"].ast), ("kernel-compiled",)):
        held = Tensor.zeros(1, 8, 1024, 128, dtype=dtypes.bfloat16, device=NAME).contiguous().realize()
        seen = held[:, :, : Variable("n", 1, 1024).bind(2)]
        query = given(numbers(1, 32, 1, 128), dtypes.bfloat16)
        query.scaled_dot_product_attention(seen, seen, enable_gqa=True).realize()
    (ast,) = (each for each in asts if each.arg.name == KERNEL)
    program = lower(optimise(ast, cuda_target()), cuda_target())
    assert (math.prod(plan_launch(program).grid), plan_launch(program).group) == (32, (512, 1, 1))
    text = render_program(program)
    assert text.count("*(const Vector<unsigned short, 8>*)") == 1 + 2 * 4
    try:
        toolchain()
    except Unavailable:
        return
    compile_text(text, cuda_target().arch)


def test_heads_of_one_token_are_given_to_a_kernel_without_a_copy() -> None:
    """To move an axis of one element moves nothing in memory; to move others does."""

    def doubled(out: UOp, x: UOp) -> UOp:
        number = UOp.range(math.prod(x.shape), 0)
        return out.flatten()[number].set(x.flatten()[number] * 2.0, end=number).sink(arg=KernelInfo("doubled"))

    x = numbers(1, 3, 1, 4)
    with emulated_card() as card:
        for axes, shape, copies in (
            ((0, 2, 1, 3), (1, 12), 0),
            ((0, 1, 3, 2), (1, 1, 12), 0),
            ((3, 0, 2, 1), (12,), 1),
        ):
            before = len(card.programs)
            source = Tensor.custom_kernel(Tensor.empty(1, 3, 1, 4, device=NAME), given(x), fxn=doubled)[0]
            moved = source.permute(*axes).reshape(*shape)
            found = Tensor.custom_kernel(Tensor.empty(*shape, device=NAME), moved, fxn=doubled)[0].numpy()
            np.testing.assert_array_equal(found, 4 * x.transpose(axes).reshape(shape))
            made = [program.name for program in card.programs[before:]]
            assert sum(not name.startswith("doubled") for name in made) == copies
