"""Tiles that the card's copy engine fetches: a box says what the threads' copies say, for each element of the tile and
each work-group; what is no box is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tilewright import Tensor, dtypes
from tilewright.backends.cuda.boxes import LINE_BYTES, Box, find_boxes
from tilewright.backends.cuda.chain_plan import plan_chain
from tilewright.backends.cuda.cores import warp_group_core
from tilewright.backends.cuda.device import cuda_target
from tilewright.codegen.pipeline import lower
from tilewright.codegen.tiles import axis_size, tile_value
from tilewright.graph.affine import Affine
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp, memory_of
from tilewright.kernel.optimise import optimise
from tilewright.runtime.device import open_driver

BF16 = dtypes.bfloat16
# Elements and work-groups that are looked at.
SAMPLES = 150


@pytest.fixture(autouse=True)
def card() -> Iterator[None]:
    driver: Any = open_driver("PYTHON")
    before = driver.target
    driver.target = replace(
        before, tensor_cores=(warp_group_core(BF16, 128, 128),), max_local_bytes=cuda_target().max_local_bytes
    )
    yield
    driver.target = before


def forward(*operands: Tensor, is_causal: bool = False) -> Program:
    found = Tensor.scaled_dot_product_attention(*operands, is_causal=is_causal, enable_gqa=True)
    asts = [item.ast for item in found.schedule() if item.ast is not None]
    ast = next(ast for ast in asts if ast.arg.name == "attention_forward")
    return lower(optimise(ast, cuda_target()), cuda_target())


def plain(*shape: int) -> Tensor:
    return Tensor.empty(*shape, dtype=BF16, device="PYTHON")


def turned(batch: int, heads: int, time: int, features: int) -> Tensor:
    return plain(batch, time, heads, features).transpose(1, 2)


def projected() -> Program:
    """All operands are parts of one matrix."""
    parts = plain(2, 300, 3, 4, 96)
    return forward(*(parts[:, :, number].transpose(1, 2) for number in range(3)))


PROGRAMS = {
    "causal": lambda: forward(plain(2, 4, 1024, 128), plain(2, 4, 1024, 128), plain(2, 4, 1024, 128), is_causal=True),
    "rests of rows": lambda: forward(plain(2, 3, 394, 128), plain(2, 3, 700, 128), plain(2, 3, 700, 128)),
    "rests of features": lambda: forward(plain(1, 3, 256, 80), plain(1, 3, 256, 80), plain(1, 3, 256, 80)),
    "rests of both, causal": lambda: forward(
        turned(2, 3, 390, 72), turned(2, 3, 390, 72), turned(2, 3, 390, 72), is_causal=True
    ),
    "time before heads": lambda: forward(turned(2, 6, 384, 128), turned(2, 2, 384, 128), turned(2, 2, 384, 128)),
    "parts of one matrix": projected,
}


def stores_of(program: Program) -> dict[UOp, list[UOp]]:
    found: dict[UOp, list[UOp]] = {}
    for node in program.body:
        if node.op is Ops.STORE and memory_of(node.src[0]).op is Ops.DEFINE_LOCAL:
            found.setdefault(memory_of(node.src[0]), []).append(node)
    return found


def value_of(form: Affine, at: dict[UOp, int]) -> int:
    return form.constant + sum(step * tile_value(atom, at) for atom, step in form.terms.items())


def fetched_from(box: Box, number: int, at: dict[UOp, int]) -> int | None:
    """Where in memory element `number` of a tile comes from; None where it is 0."""
    line = LINE_BYTES // box.map.itemsize
    part, row, lane = number // (box.rows * line), number // line % box.rows, number % line
    place = (part * line + lane, value_of(box.row, at) + row, value_of(box.around, at))
    if not all(0 <= index < size for index, size in zip(place, box.map.sizes)):
        return None
    steps = (1, *(stride // box.map.itemsize for stride in box.map.strides))
    return box.map.start // box.map.itemsize + sum(index * step for index, step in zip(place, steps))


def axes_below(*nodes: UOp) -> set[UOp]:
    return {axis for node in nodes for axis in node.ranges}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_box_is_what_the_threads_copy(name: str) -> None:
    program = PROGRAMS[name]()
    stores = stores_of(program)
    boxes = find_boxes(stores, program.local_ranges)
    assert boxes is not None
    assert len(boxes) == 3
    draw = random.Random(5)
    for memory, (store,) in stores.items():
        place, source = store.src[0], store.src[1].src[0]
        axes = axes_below(place, source)
        for _ in range(SAMPLES):
            at = {axis: draw.randrange(axis_size(axis)) for axis in axes}
            number, origin = (tile_value(each.src[1], at) for each in (place, source))
            is_there = all(tile_value(mask, at) for mask in source.src[2:])
            assert fetched_from(boxes[memory], number, at) == (origin if is_there else None)


def test_what_is_no_box() -> None:
    program = PROGRAMS["rests of rows"]()
    (memory, (store,)), *_ = stores_of(program).items()
    place, load = store.src
    source = load.src[0]
    assert find_boxes({memory: [store]}, program.local_ranges) is not None

    def refused(changed: UOp) -> bool:
        return find_boxes({memory: [changed]}, program.local_ranges) is None

    def loaded(*sources: UOp) -> UOp:
        return store.with_src((place, load.with_src((source.with_src(sources),))))

    lane = next(axis for axis in axes_below(place) if axis.arg.kind is AxisType.UPCAST and axis_size(axis) == 8)
    assert refused(store.with_src((place, load + load)))  # computed
    assert refused(loaded(source.src[0], source.src[1] * 2, source.src[2]))  # not contiguous
    assert refused(loaded(source.src[0], source.src[1] + 1, source.src[2]))  # not aligned
    assert refused(loaded(source.src[0], source.src[1], lane < 3))  # a part of a vector
    assert refused(loaded(source.src[0], source.src[1], program.local_ranges[0] < 100))  # neither rows nor columns
    assert refused(store.with_src((place.with_src((place.src[0], place.src[1] // 16 * 16)), load)))  # written twice
    assert find_boxes({memory: [store, store]}, program.local_ranges) is None
    assert find_boxes({memory: [store]}, (*program.local_ranges, lane)) is None


def test_who_fetches() -> None:
    """A warp group of its own, for two groups that multiply; with a group that multiplies, all threads copy."""
    chain = plan_chain(PROGRAMS["causal"]())
    assert chain is not None
    assert chain.boxes is not None
    assert chain.late is not None
    assert (chain.threads, chain.launched_threads, chain.multipliers, chain.stages) == (256, 384, 2, 3)
    assert len(chain.maps) == 3
    assert chain.shared_bytes <= cuda_target().max_local_bytes
    narrow = plan_chain(forward(plain(1, 2, 300, 64), plain(1, 2, 300, 64), plain(1, 2, 300, 64)))
    assert narrow is not None
    assert narrow.boxes is None
    assert narrow.launched_threads == 128
    assert not narrow.maps
