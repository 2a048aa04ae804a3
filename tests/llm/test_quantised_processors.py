"""Products with quantised weights as processors other than this one compute them: the text is rendered for one, run
here with the meaning of its instructions in their place, and assembled for it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.backends.test_cpu_dot_products import PROCESSORS, run_text, targets, with_meanings
from tests.backends.test_cpu_processors import assembly_for
from tests.llm.test_quantised_products import KINDS, bound_of, decoded, random_blocks, random_rows
from tilewright import Tensor
from tilewright.backends.cpu.device import KERNEL_SYMBOL
from tilewright.backends.cpu.rendering.renderer import render
from tilewright.base.dtype import dtypes
from tilewright.base.target import Target
from tilewright.codegen.pipeline import lower
from tilewright.graph.kernels.language.language import make_argument
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp
from tilewright.kernel.optimise import optimise
from tilewright.llm.quantised import product
from tilewright.llm.quantised.activations import quantise
from tilewright.llm.quantised.kernels import Tile, many_tokens
from tilewright.llm.quantised.layouts import layout_of
from tilewright.llm.quantised.types import TYPES

Array = np.ndarray[Any, Any]
Kernel = Callable[..., UOp]
NAME = "NEON dotprod"
__all__ = ["targets"]  # a fixture


def compiled(kernel: Kernel, target: Target, arrays: list[Array]) -> tuple[str, Program]:
    """The text of a kernel whose first argument is the result."""
    kinds = {np.dtype(each.name): each for each in (dtypes.float32, dtypes.int8, dtypes.uint8)}
    arguments = [make_argument(slot, kinds[array.dtype], array.shape) for slot, array in enumerate(arrays)]
    program = lower(optimise(kernel(*arguments), target), target)
    return render(program, KERNEL_SYMBOL), program


def run(kernel: Kernel, target: Target, arrays: list[Array]) -> tuple[Array, str]:
    text, program = compiled(kernel, target, arrays)
    data = {slot: array.reshape(-1) for slot, array in enumerate(arrays)}
    machine, _, processor, features = PROCESSORS[NAME]
    found = run_text(with_meanings(text), program, data)
    return found.reshape(arrays[0].shape), assembly_for(machine, processor, text, features)


def dots(assembly: str) -> int:
    return len(re.findall(r"\tsdot\t", assembly))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("blocks", "rows"), [(1, 4), (4, 4), (6, 4), (4, 3)])
def test_one_token_adds_products_up_pairwise(targets: dict[str, Target], kind: str, blocks: int, rows: int) -> None:
    """With one dot product for each 16 weights, none for corrections, at most a conversion for each 4 scales, and all
    vectors in registers."""
    layout, columns = layout_of(kind, is_signed=True), TYPES[kind].size * blocks
    weights, x = random_blocks(kind, rows, columns), random_rows(1, columns)
    tile = product.row_tile(layout, targets[NAME], rows, 1)
    quantised = [each.numpy()[:, None] for each in product.row_activations(layout, tile, Tensor(x))]
    kernel = product.row_kernel(TYPES[kind], layout, tile, "product")

    def without_choice(out: UOp, w: UOp, *rest: UOp) -> UOp:
        return kernel(out, w, None, *rest)

    arrays = [np.zeros((1, 1, rows), np.float32), weights[None], *quantised]
    found, assembly = run(without_choice, targets[NAME], arrays)
    values = decoded(kind, weights)
    error = np.abs(found[0] - x.astype(np.float64) @ values.T.astype(np.float64))
    assert (error <= bound_of(values, x)).all()
    if layout.scales > 1 or blocks == 4:
        size = TYPES[kind].size * (1 if layout.scales > 1 else 4)
        assert dots(assembly) == tile.rows * size // 16
        assert len(re.findall(r"\taddp\tv", assembly)) >= 3 * tile.rows
        assert len(re.findall(r"\tscvtf\tv", assembly)) <= tile.rows * (1 if layout.scales == 1 else layout.scales // 2)
        # Bytes that are scales become floats by a shuffle and a subtraction; those that are minima, by the shuffle.
        assert layout.scales == 1 or len(re.findall(r"\tfsub\tv", assembly)) <= tile.rows * layout.scales // 4
        among_dots = assembly[assembly.index("\tsdot\t") : assembly.rindex("\tsdot\t")]
        assert kind == "Q5_K" or not re.search(r"\tst[rp]\tq", among_dots)
        assert kind != "Q6_K" or (len(re.findall(r"\tsri\t", assembly)) == 8 and "usra" not in among_dots)


@pytest.mark.parametrize("kind", KINDS)
def test_many_tokens_take_weights_by_lane(targets: dict[str, Target], kind: str) -> None:
    """16 bytes of weights are loaded at once, and every instruction takes 4 of them for all its lanes."""
    layout, columns, tokens = layout_of(kind, is_signed=True, is_shared=True), TYPES[kind].size * 2, 8
    weights, x = random_blocks(kind, 4, columns), random_rows(tokens, columns)
    quantised = [each.numpy() for each in quantise(Tensor(x), product.parts_of_a_run(layout), 4)]
    kernel = functools.partial(many_tokens(layout, TYPES[kind].nbytes, Tile(2, 2, 4), "products"))
    found, assembly = run(kernel, targets[NAME], [np.zeros((4, tokens), np.float32), weights, *quantised])
    values = decoded(kind, weights)
    assert (np.abs(found.T - x.astype(np.float64) @ values.T.astype(np.float64)) <= bound_of(values, x)).all()
    by_lane = re.findall(r"\tsdot\tv\d+\.4s, v\d+\.16b, v\d+\.4b\[[0-3]\]", assembly)
    assert len(by_lane) == dots(assembly) > 0


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_starts_of_sums_are_loaded(targets: dict[str, Target], kind: str) -> None:
    """A sum of bytes starts from the bits of a float. A load does not take a unit that multiplies, as a copy from
    register to register does."""
    layout, columns = layout_of(kind, is_signed=True, is_shared=True), TYPES[kind].size * 2
    weights, x = random_blocks(kind, 4, columns), random_rows(8, columns)
    quantised = [each.numpy() for each in quantise(Tensor(x), product.parts_of_a_run(layout), 4)]
    kernel = many_tokens(layout, TYPES[kind].nbytes, Tile(4, 2, 4), "products")
    slow = replace(targets[NAME], native_ops=targets[NAME].native_ops | {"SLOW_CONVERSIONS"})
    _, assembly = run(kernel, slow, [np.zeros((4, 8), np.float32), weights, *quantised])
    assert not re.findall(r"\tmov\tv\d+\.16b, v\d+\.16b", assembly)
    assert "scvtf" not in assembly


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K"])
def test_weights_of_the_next_rows_are_prefetched(targets: dict[str, Target], kind: str) -> None:
    """A matrix of a model comes from memory, whatever its size: other weights were read since its last use."""
    layout, columns = layout_of(kind, is_signed=True, is_shared=True), TYPES[kind].size * 2
    weights, x = random_blocks(kind, 8, columns), random_rows(8, columns)
    quantised = [each.numpy() for each in quantise(Tensor(x), product.parts_of_a_run(layout), 4)]
    kernel = many_tokens(layout, TYPES[kind].nbytes, Tile(2, 2, 4), "products")
    text, program = compiled(kernel, targets[NAME], [np.zeros((8, 8), np.float32), weights, *quantised])
    assert program.streams == (1,)
    pointers = re.findall(r"llvm.prefetch.p0\(ptr (%\w+)", text)
    ahead = [re.search(rf"  {each} = getelementptr i8, ptr (%\w+), i64 (\d+)", text) for each in pointers]
    distance = 2 * weights.shape[1]  # no multiple of a line: the last byte of a vector may be in the next one
    assert {int(found[2]) for found in ahead if found} == {distance, distance + 15}
    assert len(ahead) >= 2
    assert all(re.search(rf"load <\d+ x i8>, ptr {found[1]}\b", text) for found in ahead if found)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["AVX2", "AVX-512", "AVX-512 VNNI"])
def test_one_token_on_x86(targets: dict[str, Target], kind: str, name: str) -> None:
    """Bytes are multiplied four to a lane by each of them: in one instruction, in three, or as words."""
    layout, columns, rows = layout_of(kind, is_signed=False), TYPES[kind].size * 2, 8
    weights, x = random_blocks(kind, rows, columns), random_rows(1, columns)
    tile = product.row_tile(layout, targets[name], rows, 1)
    quantised = [each.numpy()[:, None] for each in product.row_activations(layout, tile, Tensor(x))]
    kernel = product.row_kernel(TYPES[kind], layout, tile, "product")
    arrays = [np.zeros((1, 1, rows), np.float32), weights[None], *quantised]
    text, program = compiled(lambda out, w, *rest: kernel(out, w, None, *rest), targets[name], arrays)
    data = {slot: array.reshape(-1) for slot, array in enumerate(arrays)}
    found = run_text(with_meanings(text), program, data).reshape(1, rows)
    values = decoded(kind, weights)
    error = np.abs(found - x.astype(np.float64) @ values.T.astype(np.float64))
    assert (error <= bound_of(values, x)).all()
    assert " mul <" not in text
    expected = "vpdpbusd" if "VNNI" in name else "pmadd" if layout.minimum is None else "pmadd.?ub"
    assert re.search(expected, text)
