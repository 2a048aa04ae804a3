"""How programs with several products run on a card. Tiles that the copy engine fetches: a box says what the threads'
copies say, for each element of the tile and each work-group. Wide stores write what narrow ones do. A work-group takes
tiles that are equally much work for all. What is no such thing is refused."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tilewright import Tensor, dtypes
from tilewright.backends.cuda.boxes import LINE_BYTES, Box, find_boxes
from tilewright.backends.cuda.chain_plan import TileChain, chain_launch, plan_chain
from tilewright.backends.cuda.chain_store import find_wide_stores
from tilewright.backends.cuda.cores import warp_group_core
from tilewright.backends.cuda.device import cuda_target
from tilewright.codegen.pipeline import lower
from tilewright.codegen.tiles import tile_value
from tilewright.graph.affine import Affine
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of
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


def program_of(name: str, *values: Tensor) -> Program:
    asts = [item.ast for item in values[0].schedule(*values[1:]) if item.ast is not None]
    ast = next(ast for ast in asts if ast.arg.name == name)
    return lower(optimise(ast, cuda_target()), cuda_target())


def forward(*operands: Tensor, is_causal: bool = False) -> Program:
    found = Tensor.scaled_dot_product_attention(*operands, is_causal=is_causal, enable_gqa=True)
    return program_of("attention_forward", found)


def gradient() -> Program:
    given = [plain(1, 2, 200, 64) for _ in range(3)]
    found = Tensor.scaled_dot_product_attention(*given)
    return program_of("attention_key_gradient", *found.gradient(*given, gradient=found.detach())[1:])


def chain_of(program: Program) -> TileChain:
    chain = plan_chain(program)
    assert chain is not None
    return chain


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
            at = {axis: draw.randrange(size_of(axis)) for axis in axes}
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

    lane = next(axis for axis in axes_below(place) if axis.arg.kind is AxisType.UPCAST and size_of(axis) == 8)
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
    chain = chain_of(PROGRAMS["causal"]())
    assert chain.boxes is not None
    assert chain.late is not None
    assert (chain.threads, chain.launched_threads, chain.multipliers, chain.stages) == (256, 384, 2, 3)
    assert chain.shared_bytes <= cuda_target().max_local_bytes
    assert len(chain.maps) == 3
    narrow = chain_of(gradient())
    assert (narrow.boxes, narrow.launched_threads, narrow.maps) == (None, 128, ())


@pytest.mark.parametrize(
    ("times", "is_causal", "run", "groups"),
    [
        ((4096, 4096), True, 2, 132),  # pairs of a long and a short tile
        ((2048, 4096), True, 2, 128),
        ((4096, 2048), True, 1, 512),  # no tile has more than 2048 keys: pairs are not equal
        ((4224, 4224), True, 1, 528),  # an odd number of tiles has no pairs
        ((4224, 4224), False, 1, 132),
    ],
)
def test_tiles_of_a_work_group(times: tuple[int, int], is_causal: bool, run: int, groups: int) -> None:
    """Where all have equally much work there is one work-group to a core; else the next free core takes a tile."""
    operands = [plain(1, 16, time, 128) for time in (times[0], times[1], times[1])]
    chain = chain_of(forward(*operands, is_causal=is_causal))
    launch = chain_launch(chain)
    assert (chain.run, launch.grid, launch.group) == (run, (groups, 1, 1), (384, 1, 1))


WIDE = {**PROGRAMS, "gradient": gradient}


@pytest.mark.parametrize("name", ["causal", "rests of rows", "parts of one matrix", "gradient"])
def test_wide_stores_write_what_narrow_ones_do(name: str) -> None:
    """Thread n of 4 has, after the exchange, the pairs that all of them have in group n, in their order."""
    chain = chain_of(WIDE[name]())
    stores = find_wide_stores(chain)
    assert len(stores) == (2 if name == "gradient" else 1)
    draw = random.Random(3)
    (thread,) = chain.program.local_ranges
    for store, wide in stores.items():
        place = store.src[0]
        for _ in range(SAMPLES // 4):
            at = {axis: draw.randrange(size_of(axis)) for axis in axes_below(*place.src[1:])}
            at[wide.group] -= at[wide.group] % 4
            at[thread] -= at[thread] % 4
            for number in range(4):
                own = {**at, thread: at[thread] + number, wide.pair: 0}
                start, *masks = (tile_value(each, own) for each in place.src[1:])
                assert (start + 6 * number) % 8 == 0
                for lane in range(8):
                    group, other = at[wide.group] + number, at[thread] + lane // 2
                    given = {**at, thread: other, wide.group: group, wide.pair: lane % 2}
                    written, *wanted = (tile_value(each, given) for each in place.src[1:])
                    assert (start + 6 * number + lane, masks) == (written, wanted)


def test_stores_that_stay_narrow() -> None:
    """80 features are 10 groups of 8, of which 4 threads cannot exchange a multiple of 4."""
    assert not find_wide_stores(chain_of(PROGRAMS["rests of features"]()))
