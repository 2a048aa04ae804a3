"""Products of float32 on tensor cores, as sums of three bfloat16 parts: no less accurate than float32, and the same
values where an infinity, a NaN, an overflow or a denormal number is multiplied. On the emulated card, and on the card
where there is one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.kernel.emulated_card import NAME, emulated_card
from tilewright import Context, Tensor, jit
from tilewright.backends.cuda.cores import cores_of, part_core, thread_core
from tilewright.base.errors import DeviceError
from tilewright.runtime.device import open_driver

Array = np.ndarray[Any, Any]
F32 = np.float32
MAX, LEAST = np.finfo(F32).max, np.finfo(F32).smallest_subnormal
UNIT = 2.0**-24


@functools.cache
def has_card() -> bool:
    try:
        return any(core.parts > 1 for core in open_driver("CUDA").target.tensor_cores)
    except DeviceError:
        return False


@pytest.fixture(params=["EMULATED", "CUDA"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "CUDA":
        if not has_card():
            pytest.skip("there is no card with such tensor cores")
        yield "CUDA"
        return
    with emulated_card(tensor_cores=(part_core(64, 64),), max_local_bytes=1 << 18) as card:
        yield NAME
        cores = {node.arg.core for program in card.programs for node in program.body if node.op.name == "TILE_DOT"}
        assert cores == {"wgmma_float32x3_64x64"}


def multiply(left: Array, right: Array, device: str) -> Array:
    return np.asarray((Tensor(left, device=device) @ Tensor(right, device=device)).numpy())


def multiply_plainly(left: Array, right: Array) -> Array:
    """One float32 FMA after the other."""
    total = np.zeros((len(left), right.shape[1]), F32)
    with np.errstate(all="ignore"):
        for step in range(len(right)):
            terms = left[:, step : step + 1].astype(np.float64) * right[step].astype(np.float64)
            total = (total.astype(np.float64) + terms).astype(F32)
    return total


# ---------------------------------------------------------------- accuracy


def mixed(random: np.random.Generator, shape: tuple[int, int]) -> Array:
    return random.standard_normal(shape) * 10.0 ** random.uniform(-8, 8, shape)


def cancelling(random: np.random.Generator, length: int) -> tuple[Array, Array]:
    left, right = random.standard_normal((72, length)), random.standard_normal((length, 72))
    half = length // 2
    left[:, half : 2 * half], right[half : 2 * half] = -left[:, :half] * (1 + 1e-5), right[:half]
    return left, right


def normal(random: np.random.Generator, length: int, left: float = 1, right: float = 1) -> tuple[Array, Array]:
    return left * random.standard_normal((72, length)), right * random.standard_normal((length, 72))


DATA: dict[str, Callable[[np.random.Generator, int], tuple[Array, Array]]] = {
    "normal": normal,
    "positive": lambda random, length: (random.random((72, length)), random.random((length, 72))),
    "mixed magnitudes": lambda random, length: (mixed(random, (72, length)), mixed(random, (length, 72))),
    "cancelling": cancelling,
    "almost denormal": lambda random, length: normal(random, length, 1e-37, 1e30),
    "denormal": lambda random, length: normal(random, length, 1e-41, 1e30),
    "large": lambda random, length: normal(random, length, 1e20, 1e14),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("length", [64, 100, 320])
@pytest.mark.parametrize("name", DATA)
def test_no_less_accurate_than_float32(name: str, length: int, device: str) -> None:
    left, right = (each.astype(F32) for each in DATA[name](np.random.default_rng(length), length))
    exact = left.astype(np.float64) @ right.astype(np.float64)
    size = np.abs(left).astype(np.float64) @ np.abs(right).astype(np.float64)
    errors = []
    for found in (multiply(left, right, device), multiply_plainly(left, right)):
        error = np.abs(found.astype(np.float64) - exact) / size / UNIT
        errors.append((error.max(), np.sqrt((error * error).mean())))
    (ours, our_mean), (plain, plain_mean) = errors
    assert ours <= plain * 1.05 + 1  # the largest of a few thousand
    assert our_mean <= plain_mean * 1.05


# ---------------------------------------------------------------- special values


def with_values(*places: tuple[int, int, float]) -> Callable[[Array, Array], None]:
    def change(left: Array, right: Array) -> None:
        for row, step, value in places:
            left[row, step] = value

    return change


def both(value: float) -> Callable[[Array, Array], None]:
    def change(left: Array, right: Array) -> None:
        left[4, 2] = right[-1, 5] = value
        right[0], right[2, 7] = 1, 0

    return change


def only(left_value: float, right_value: float) -> Callable[[Array, Array], None]:
    """One product in each sum."""

    def change(left: Array, right: Array) -> None:
        left[:], left[:, 0], right[0] = 0, left_value, right_value

    return change


SPECIAL: dict[str, Callable[[Array, Array], None]] = {
    "an infinity": with_values((3, 30, np.inf)),
    "a negative infinity": with_values((3, 30, -np.inf)),
    "a NaN": with_values((3, 30, np.nan)),
    "two infinities in a row": with_values((3, 30, np.inf), (3, 31, np.inf)),
    "infinities on both sides, one by zero": both(np.inf),
    "the largest number": both(MAX),
    "a number beyond the scale": both(1e34),
    "an infinity by one": only(np.inf, 1),
    "an infinity by a number with one part": only(-np.inf, 0.5),
    "an infinity by the least denormal number": only(np.inf, LEAST),
    "the largest by one": only(MAX, 1),
    "the largest by a little more than one": only(MAX, 1 + 2.0**-20),
    "parts that overflow, a product that does not": only(1.5 * 2.0**127, 1.3333),
    "the least denormal number by one": only(LEAST, 1),
    "denormal numbers": only(1e-40, -3),
    "products below the least": only(1e-30, 1e-30),
    "NaN everywhere": only(np.nan, np.nan),
    "zeros": only(0, -1),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("length", [40, 64, 200])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name: str, length: int, device: str) -> None:
    random = np.random.default_rng(length)
    left, right = (random.standard_normal(shape).astype(F32) for shape in ((96, length), (length, 80)))
    SPECIAL[name](left, right)
    found, plain = multiply(left, right, device), multiply_plainly(left, right)
    finite = np.isfinite(plain)
    np.testing.assert_array_equal(found[~finite], plain[~finite])
    assert np.isfinite(found[finite]).all()
    with np.errstate(all="ignore"):
        size = np.abs(left).astype(np.float64) @ np.abs(right).astype(np.float64)
        error = np.abs(found.astype(np.float64) - plain)
    assert (error[finite] <= length * (UNIT * size[finite] + float(LEAST))).all()


def test_overflow_both_ways(device: str) -> None:
    left = np.zeros((64, 64), F32)
    left[:, 0], left[:, 1] = MAX, -MAX
    found = multiply(left, np.full((64, 64), 2, F32), device)
    assert not np.isfinite(found).any() or (found == 0).all()  # inf, inf - inf, or their exact sum


# ---------------------------------------------------------------- the choice


def test_the_option_turns_it_off() -> None:
    assert any(core.parts > 1 for core in cores_of("sm_90a", allow_tf32=False, allow_bf16x6=True))
    for arch, tf32, bf16x6 in (("sm_90a", False, False), ("sm_90a", True, True), ("sm_80", False, True)):
        assert all(core.parts == 1 for core in cores_of(arch, tf32, bf16x6))


def test_a_call_is_not_replayed_with_another_setting() -> None:
    calls = []

    @jit
    def double(x: Tensor) -> Tensor:
        calls.append(x)
        return x @ x

    x = Tensor(np.eye(4, dtype=F32)).realize()
    for _ in range(4):
        double(x)
    made = len(calls)
    with Context(ALLOW_BF16X6=0):
        double(x)
    assert len(calls) > made


def test_short_sums_of_odd_rows_are_loaded_as_vectors() -> None:
    """Rows of 50 columns that begin at multiples of 52: vectors may exceed a row where its memory goes on."""
    random = np.random.default_rng(3)
    left, right = random.standard_normal((80, 101)).astype(F32), random.standard_normal((101, 70)).astype(F32)
    for core in (part_core(64, 64), thread_core(64, 64)):
        with emulated_card(tensor_cores=(core,), max_local_bytes=1 << 18):
            padded = [Tensor(np.pad(each, ((0, 3), (0, -each.shape[1] % 4))), device=NAME) for each in (left, right)]
            rows = [each.realize()[: len(one), : one.shape[1]] for each, one in zip(padded, (left, right), strict=True)]
            np.testing.assert_allclose((rows[0] @ rows[1]).numpy(), left @ right, rtol=1e-4, atol=1e-4)


def test_rows_of_odd_length_are_staged_in_vectors() -> None:
    """Both operands are copied into padded rows, whose last vectors are read whole, also at the end of the memory."""
    generator = np.random.default_rng(8)
    left, right = (generator.standard_normal(shape).astype(F32) for shape in ((67, 77), (77, 65)))
    facts = {"tensor_cores": (part_core(64, 64),), "max_local_bytes": 1 << 18, "start_alignment": 16}
    with emulated_card(**facts, cores=1, launch_clocks=0.0) as card:
        found = multiply(left, right, NAME)
        *copies, product = card.programs
    assert len(copies) == 2
    lanes = [
        {axis.src[0].arg for axis in node.ranges if axis.arg.kind.name == "UPCAST"}
        for node in product.body
        if node.op.name == "STORE" and node.src[0].src[0].op.name != "PARAM"
    ]
    assert len(lanes) == 2
    assert all(4 in sizes for sizes in lanes)
    np.testing.assert_allclose(found, left.astype(np.float64) @ right, atol=1e-5)
