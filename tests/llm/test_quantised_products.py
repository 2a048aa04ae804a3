"""Products with quantised weights: kernels on 8-bit activations against decoded weights in float64, and the option that
keeps floats. The bound: an activation is off by at most half a scale, 1/254 of the largest of its run of 32, so a
product is off by at most the sum of |weight| * (largest of the run) / 254."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.backends.llvm_texts import record_texts
from tilewright import Context, Tensor, jit
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.llm.quantised import product
from tilewright.llm.quantised.activations import quantise
from tilewright.llm.quantised.kernels import Tile, many_tokens, shared_rows
from tilewright.llm.quantised.layouts import LAYOUTS, layout_of, unsigned
from tilewright.llm.quantised.row_kernels import (
    one_token,
    parts_in_lanes,
    rows_in_lanes,
    runs_in_lanes,
    sums_in_lanes,
)
from tilewright.llm.quantised.types import TYPES
from tilewright.llm.quantised.weight import QuantisedWeight
from tilewright.runtime.device import open_driver

Array = np.ndarray[Any, Any]
KINDS = sorted(LAYOUTS)
NAMES_OF_HALVES = {"Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2)}


def random_blocks(kind: str, rows: int, columns: int, seed: int = 0) -> Array:
    """Any fields, with scales of which no product overflows."""
    generator = np.random.default_rng(seed)
    form = TYPES[kind]
    blocks = generator.integers(0, 256, (rows, columns // form.size, form.nbytes)).astype(np.uint8)
    for first in NAMES_OF_HALVES.get(kind, (0,)):
        halves = generator.uniform(-0.01, 0.01, (*blocks.shape[:2], 1)).astype(np.float16)
        blocks[..., first : first + 2] = halves.view(np.uint8)
    return blocks.reshape(rows, -1)


def random_rows(tokens: int, columns: int, seed: int = 1) -> Array:
    """Runs of very different sizes, one of zeros."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((tokens, columns)).astype(np.float32)
    x *= np.repeat(10.0 ** generator.uniform(-3, 3, (tokens, columns // 32)), 32, axis=1).astype(np.float32)
    x[:, :32] *= tokens % 2
    return x


def decoded(kind: str, blocks: Array) -> Array:
    return (
        QuantisedWeight(kind, (len(blocks), blocks.shape[1] // TYPES[kind].nbytes * TYPES[kind].size), Tensor(blocks))
        .decode()
        .numpy()
    )


def bound_of(weights: Array, x: Array) -> Array:
    """Half a scale per element, and what float32 rounds."""
    largest = np.repeat(np.abs(x.reshape(len(x), -1, 32)).max(2), 32, axis=1).astype(np.float64)
    return (largest / 254 * 1.001 + 1e-5 * np.abs(x)) @ np.abs(weights.T.astype(np.float64)) + 1e-6


def check(kind: str, rows: int, columns: int, tokens: int) -> None:
    blocks, x = random_blocks(kind, rows, columns), random_rows(tokens, columns)
    weights = decoded(kind, blocks)
    found = product.linear(TYPES[kind], Tensor(blocks), Tensor(x)).numpy()
    expected = x.astype(np.float64) @ weights.T.astype(np.float64)
    assert found.shape == (tokens, rows)
    assert (np.abs(found - expected) <= bound_of(weights, x)).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "tokens"), [(8, 1), (7, 1), (6, 3), (32, 2), (16, 11), (5, 9), (3, 70)])
def test_products_of_any_shape(kind: str, rows: int, tokens: int) -> None:
    check(kind, rows, TYPES[kind].size * (1 if rows == 7 else 3), tokens)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "rows"), [*((kind, 6) for kind in KINDS), ("Q4_0", 16), ("Q5_1", 16)])
def test_chosen_experts_alone_are_multiplied(kind: str, rows: int) -> None:
    columns, experts = TYPES[kind].size * 2, 5
    blocks = random_blocks(kind, experts * rows, columns)
    weights = decoded(kind, blocks).reshape(experts, rows, columns)
    chosen = np.array([[4, 0], [2, 2], [1, 3]], dtype=np.int32)
    for picks in (1, 2):
        x = random_rows(3 * picks, columns).reshape(3, picks, columns)
        found = product.expert_linear(TYPES[kind], Tensor(blocks.reshape(experts, rows, -1)), Tensor(x), Tensor(chosen))
        assert found.shape == (3, 2, rows)
        for token, row in enumerate(chosen):
            for pick, expert in enumerate(row):
                given = x[token, pick % picks][None]
                expected = given.astype(np.float64) @ weights[expert].T.astype(np.float64)
                error = np.abs(found.numpy()[token, pick] - expected)
                assert (error <= bound_of(weights[expert], given)).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("is_signed", [False, True])
def test_kernels_on_the_emulator(kind: str, is_signed: bool) -> None:
    """Which finds races, reads of memory that nobody wrote and accesses out of bounds."""
    layout, columns = layout_of(kind, is_signed, is_signed), TYPES[kind].size
    blocks, rows = random_blocks(kind, 4, columns), random_rows(4, columns)
    weights = decoded(kind, blocks)
    parts = product.parts_of_a_run(layout)
    if layout.scales > 1:
        single = [runs_in_lanes, one_token, parts_in_lanes]
    else:
        single = [rows_in_lanes, one_token, sums_in_lanes] if layout.is_packed else [one_token, sums_in_lanes]
    for make in single:
        tile = Tile(2, 1, 8, 4) if make is parts_in_lanes else Tile(2, 1)
        kernel = make(layout, TYPES[kind].nbytes, tile, "single")
        quantised = product.row_activations(layout, tile, Tensor(rows[:1], device="PYTHON"))
        given = [Tensor(blocks[None], device="PYTHON"), *(each.unsqueeze(1) for each in quantised)]
        out = Tensor.empty(1, 1, 4, device="PYTHON")
        found = out.custom_kernel(*given, fxn=lambda out, w, *rest, kernel=kernel: kernel(out, w, None, *rest))[0]
        error = np.abs(found.numpy()[0] - rows[:1].astype(np.float64) @ weights.T)
        assert (error <= bound_of(weights, rows[:1])).all()
    expected, x = rows.astype(np.float64) @ weights.T, Tensor(rows, device="PYTHON")
    given = [Tensor(blocks, device="PYTHON"), *quantise(x, parts, 4)]
    kernel = many_tokens(layout, TYPES[kind].nbytes, Tile(2, 1, 4), "several")
    found = Tensor.empty(4, 4, device="PYTHON").custom_kernel(*given, fxn=kernel)[0].numpy().T
    assert (np.abs(found - expected) <= bound_of(weights, rows)).all()
    for shared in (layout, *(() if layout.minimum else (unsigned(layout),))):
        kernel = shared_rows(shared, TYPES[kind].nbytes, Tile(1, 2, 4), "shared")
        given = [Tensor(blocks, device="PYTHON"), *quantise(x, parts)]
        found = Tensor.empty(4, 4, device="PYTHON").custom_kernel(*given, fxn=kernel)[0].numpy()
        assert (np.abs(found - expected) <= bound_of(weights, rows)).all()


def test_products_use_dot_product_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """One instruction for 4 products in each lane: none of the kernels multiplies integers one by one."""
    if not product.has_kernel(TYPES["Q4_0"], Tensor(random_blocks("Q4_0", 4, 32)), Tensor(random_rows(1, 32))):
        pytest.skip("this processor has no dot-product instructions for bytes")
    texts = record_texts(monkeypatch)
    shifts: dict[str, set[int]] = {"Q4_1": set(), "Q6_K": set()}
    for kind in KINDS:
        for tokens in (1, 2, 4, 17) if kind in shifts else (1, 17):
            texts.clear()
            forget_kernels()
            with Context(CACHE=0):
                product.linear(
                    TYPES[kind], Tensor(random_blocks(kind, 16, 512)), Tensor(random_rows(tokens, 512))
                ).numpy()
            is_kept = tokens > product.MIN_LANE_TOKENS and not product.has_kernel(
                TYPES[kind], Tensor(random_blocks(kind, 4, 512)), Tensor(random_rows(tokens, 512))
            )
            if is_kept:  # fields of 8 bits and many tokens, where no one instruction multiplies bytes
                assert kind in ("Q8_0", "IQ4_NL", "IQ4_XS", "MXFP4")
                continue
            text = next(text for text in texts if re.search(r"dpbusd|dot|pmadd", text))
            layout = LAYOUTS[kind]
            if tokens in (2, 4) and product.weight_lanes(layout, "CPU", 16, tokens):
                shifts.setdefault(kind, set()).add(text.count("lshr <64 x i8>"))
                expected = tokens * layout.together * layout.length // 4  # without a vector of corrections
                assert text.count("call <16 x i32> @llvm.x86.avx512.vpdpbusd.512") in (0, expected)
            assert " mul <" not in text, f"{kind} with {tokens} tokens"
            assert "gather" not in text, f"{kind} with {tokens} tokens"
    assert all(len(found) <= 1 for found in shifts.values()), "weights are unpacked once for all tokens"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_two_terms_have_sixteen_bits(kind: str) -> None:
    """The second term is what the first one lost: its error is 1/254 of that."""
    columns = TYPES[kind].size * (2 if TYPES[kind].size == 32 else 1)
    blocks = random_blocks(kind, 12, columns)
    weights = decoded(kind, blocks)
    with Context(QUANTISED_ACTIVATIONS=2):
        for tokens in (1, 3, 9):
            x = random_rows(tokens, columns)
            found = product.linear(TYPES[kind], Tensor(blocks), Tensor(x)).numpy()
            error = np.abs(found - x.astype(np.float64) @ weights.T.astype(np.float64))
            assert (error <= bound_of(weights, x) / 100 + 1e-6 * np.abs(x).max()).all()
        chosen = np.array([[1, 0], [2, 2]], np.int32)
        x = random_rows(4, columns).reshape(2, 2, columns)
        given = (Tensor(blocks.reshape(3, 4, -1)), Tensor(x), Tensor(chosen))
        found = product.expert_linear(TYPES[kind], *given).numpy()
    picked = weights.reshape(3, 4, columns)[chosen].astype(np.float64)
    error = np.abs(found - np.einsum("tkrc,tkc->tkr", picked, x.astype(np.float64)))
    bounds = [bound_of(w, row[None])[0] for each, rows in zip(picked, x) for w, row in zip(each, rows)]
    assert (error <= np.reshape(bounds, found.shape) / 100 + 1e-6 * np.abs(x).max()).all()


def test_an_option_keeps_float_activations() -> None:
    blocks, x = random_blocks("Q4_0", 8, 64), random_rows(1, 64)
    exact = x.astype(np.float64) @ decoded("Q4_0", blocks).T.astype(np.float64)
    size = np.sqrt((exact**2).mean())
    with Context(QUANTISED_ACTIVATIONS=0):
        kept = product.linear(TYPES["Q4_0"], Tensor(blocks), Tensor(x)).numpy()
    rounded = product.linear(TYPES["Q4_0"], Tensor(blocks), Tensor(x)).numpy()
    assert np.abs(kept - exact).max() < 1e-5 * size
    # Without dot products of bytes, as on AVX2 and the first AVX-512, activations stay floats.
    rounds = any(each.terms == 4 for each in open_driver("CPU").target.dot_products)
    assert (np.abs(rounded - exact).max() > 1e-5 * size) == rounds


def test_gradients_are_those_of_the_decoded_weights() -> None:
    for tokens in (2, 20):
        blocks, data = random_blocks("Q4_K", 6, 256), random_rows(tokens, 256)
        x = Tensor(data, requires_grad=True)
        slopes = random_rows(tokens, 32)[:, :6]
        (product.linear(TYPES["Q4_K"], Tensor(blocks), x) * Tensor(slopes)).sum().backward()
        expected = slopes.astype(np.float64) @ decoded("Q4_K", blocks)
        np.testing.assert_allclose(x.grad.numpy(), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_jitted_products_are_replayed() -> None:
    blocks = Tensor(random_blocks("Q5_0", 8, 96)).realize()
    multiply = jit(lambda x: product.linear(TYPES["Q5_0"], blocks, x).realize())
    for seed in range(4):
        x = random_rows(1, 96, seed)
        eager = product.linear(TYPES["Q5_0"], blocks, Tensor(x)).numpy()
        assert np.array_equal(multiply(Tensor(x).realize()).numpy(), eager)
    assert multiply.last_reason == ""
