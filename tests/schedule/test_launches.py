"""Equal small kernels that do not need each other are one launch: how many launches are left, that nothing with a
dependence is joined, that a launch has no more buffers than the target takes, and that every result keeps its bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.backends.test_cuda_text import needs_compiler
from tests.kernel.emulated_card import NAME, emulated_card
from tilewright import Context, Tensor, nn
from tilewright.backends.cuda.device import cuda_target
from tilewright.backends.cuda.dot import render_program
from tilewright.backends.cuda.nvrtc import compile_text
from tilewright.base.errors import DeviceError
from tilewright.base.events import Event, subscribe
from tilewright.base.target import Target
from tilewright.codegen.c_style.launch import argument_slots, plan_launch
from tilewright.codegen.pipeline import lower
from tilewright.engine.planning.bind import BoundGraph
from tilewright.graph.kernels.sections import check_sections, first_section, join_sections, sections_of
from tilewright.graph.records import Item, Schedule
from tilewright.graph.text.parse import parse
from tilewright.graph.text.show import show
from tilewright.kernel.optimise import optimise
from tilewright.runtime.device import open_driver
from tilewright.schedule.pipeline import schedule
from tilewright.schedule.steps.launches import check_joined, launch_bytes

CARD = cuda_target()


def scheduled(tensors: list[Tensor], target: Target = CARD, **options: int) -> Schedule:
    bound = BoundGraph([tensor.uop for tensor in tensors])
    with Context(VERIFY_GRAPH=1, **options):
        return schedule(bound.outputs, bound.params, "CPU", target_of=lambda device: target)


def sections(made: Schedule) -> list[int]:
    return [sections_of(item.ast) for item in made.items if item.ast is not None]


def updates(count: int, size: int) -> list[Tensor]:
    """Steps of a rule with momentum: each on a parameter, its gradient and its moment."""
    rows = [[Tensor.empty(size) for _ in range(3)] for _ in range(count)]
    moments = [moment * 0.9 + slope for _, slope, moment in rows]
    return [p - m * 0.1 for (p, _, _), m in zip(rows, moments, strict=True)] + moments


# ---------------------------------------------------------------- how many


@pytest.mark.parametrize("count", [1, 2, 7, 150])
def test_updates_of_small_parameters_are_few_launches(count: int) -> None:
    alone = scheduled(updates(count, 768), JOIN_LAUNCHES=0)
    joined = scheduled(updates(count, 768))
    assert sections(alone) == [1] * count
    most = CARD.max_buffers // len(alone.items[0].slots)
    assert sum(sections(joined)) == count
    assert len(joined.items) == -(-count // most)


def test_a_launch_has_no_more_buffers_and_bytes_than_the_target_takes() -> None:
    few = replace(CARD, max_buffers=16)
    made = scheduled(updates(20, 768), few)
    assert all(len(item.slots) <= 16 for item in made.items)
    assert len(made.items) == 20 // (16 // 5) + 1
    small_cache = replace(CARD, cache_bytes=4 * 5 * 768 * 4)
    assert max(sections(scheduled(updates(20, 768), small_cache))) == 2
    for target in (replace(CARD, max_sections=1), replace(CARD, max_buffers=8), Target("TEST")):
        assert sections(scheduled(updates(3, 768), target)) == [1, 1, 1]


def test_a_kernel_that_takes_longer_than_a_launch_stays_alone() -> None:
    size = launch_bytes(CARD) // (5 * 4) + 1
    assert sections(scheduled(updates(3, size))) == [1, 1, 1]
    assert sections(scheduled([Tensor.empty(64, 64) @ Tensor.empty(64, 64) for _ in range(3)])) == [1, 1, 1]


def test_users_and_what_they_read_are_joined_in_two_launches() -> None:
    """Each sum is asked for in the middle of the program by an update of its own."""
    values = [Tensor.empty(768) for _ in range(12)]
    sums = [Tensor.empty(64, 768).sum(0).contiguous() for _ in range(12)]
    made = scheduled([*sums, *(p - s for p, s in zip(values, sums, strict=True))])
    assert sum(sections(made)) in (12, 24)
    assert len(made.items) == sum(sections(made)) // 12


# ---------------------------------------------------------------- dependences


def test_kernels_that_need_each_other_are_not_joined() -> None:
    x = Tensor.empty(768)
    chain = x
    for _ in range(6):
        chain = (chain * 2 + 1).contiguous()
    assert sections(scheduled([chain])) == [1] * 6
    # Two chains side by side: the steps of equal depth are one launch.
    y = Tensor.empty(768)
    for _ in range(6):
        y = (y * 2 + 1).contiguous()
    assert sections(scheduled([chain, y])) == [2] * 6


def test_an_update_waits_for_whoever_reads_what_was_there_before() -> None:
    """Each update overwrites what the next one reads: in one launch one would read what another has written."""
    state = [Tensor.empty(8) for _ in range(5)]
    for n in range(4):
        state[n].assign(state[n] * 2 + state[n + 1])
    made = scheduled(state[:4])
    assert sections(made) == [1] * len(made.items)


def test_sections_that_are_wrong_are_named() -> None:
    made = scheduled(updates(3, 768))
    (item,) = made.items
    assert item.ast is not None
    assert check_joined(item) is None
    assert "equal sections" in str(check_sections(item.ast.replace(src=item.ast.src[:-1])))
    swapped = item.ast.replace(src=(*item.ast.src[2:], *item.ast.src[:2]))
    assert "differ" in str(check_sections(swapped))
    twice = replace(item, writes=(item.writes[0], item.writes[0], *item.writes[1:]))
    assert "write the same bytes" in str(check_joined(twice))
    crossed = replace(item, reads=(*item.reads, replace(item.writes[0], stop=item.writes[0].stop - 4)))
    assert "reads what another writes" in str(check_joined(crossed))


def test_a_joined_kernel_has_a_text_that_reads_back() -> None:
    (item,) = scheduled(updates(4, 96)).items
    assert item.ast is not None
    assert parse(show(item.ast)) is item.ast
    section = first_section(item.ast)
    assert join_sections(section.replace(arg=replace(section.arg, sections=1, name="k")), 4).src == item.ast.src


def test_whoever_watches_is_told() -> None:
    told: list[Event] = []
    with subscribe(told.append, ("decision",)):
        scheduled(updates(5, 768))
    assert any("one launch of 5 kernels" in str(event["choice"]) for event in told)


# ---------------------------------------------------------------- values


def train(device: str, count: int, size: int) -> list[bytes]:
    numbers = np.random.default_rng(size)
    params = [Tensor(numbers.standard_normal(size).astype(np.float32), device=device) for _ in range(count)]
    for param in params:
        param.requires_grad = True
    optimizer = nn.optim.AdamW(params, lr=1e-2)
    x = Tensor(numbers.standard_normal((5, size)).astype(np.float32), device=device)
    for _ in range(2):
        optimizer.zero_grad()
        with Tensor.train():
            Tensor.stack(*((x * p).sum(0).square().sum() for p in params)).sum().backward()
            optimizer.step()
    return [np.asarray(p.numpy()).tobytes() for p in params]


def launched(run: Callable[[], list[bytes]]) -> tuple[list[bytes], list[int]]:
    """The results, and the number of sections of each kernel that was scheduled."""
    found: list[int] = []

    def note(event: Event) -> None:
        items: tuple[Item, ...] = event["items"]  # type: ignore[assignment]
        found.extend(sections_of(item.ast) for item in items if item.ast is not None)

    with subscribe(note, ("schedule",)):
        return run(), found


@pytest.mark.parametrize(("count", "size"), [(5, 33), (9, 8)])
def test_joined_launches_keep_every_bit_on_the_emulator(count: int, size: int) -> None:
    with emulated_card(max_sections=4), Context(VERIFY_GRAPH=1):
        joined, found = launched(lambda: train(NAME, count, size))
        with Context(JOIN_LAUNCHES=0):
            alone, single = launched(lambda: train(NAME, count, size))
    assert joined == alone
    assert (max(single), max(found)) == (1, 4)
    assert len(found) < len(single)


def test_joined_launches_keep_every_bit_on_opencl() -> None:
    try:
        open_driver("OPENCL")
    except DeviceError as error:
        pytest.skip(str(error))

    def run() -> list[bytes]:
        numbers = np.random.default_rng(4)
        rows = [numbers.standard_normal((3, 40)).astype(np.float32) for _ in range(7)]
        params = [[Tensor(array, device="OPENCL") for array in row] for row in rows]
        results = [p - (m * 0.9 + slope) / (m * m + 1).sqrt() for p, slope, m in params]
        Tensor.realize(*results)
        return [np.asarray(result.numpy()).tobytes() for result in results]

    joined, found = launched(run)
    with Context(JOIN_LAUNCHES=0):
        assert joined == run()
    assert max(found) == 7


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_have_the_same_values_with_and_without_joining(seed: int) -> None:
    """Few sizes and few operations, so that many kernels are equal; values that others need, and updates in place."""

    def run() -> list[bytes]:
        numbers = np.random.default_rng(seed)
        pool = [Tensor(numbers.integers(-3, 4, 6).astype(np.float32), device=NAME).realize() for _ in range(4)]
        for _ in range(14):
            first, second = (int(n) for n in numbers.integers(0, len(pool), 2))
            kind = int(numbers.integers(0, 4))
            if kind == 0:
                pool.append((pool[first] + pool[second]).contiguous())
            elif kind == 1:
                pool.append((pool[first] * 0.5 - 1).contiguous())
            elif kind == 2:
                pool.append(pool[first].reshape(2, 3).sum(0).reshape(1, 3).expand(2, 3).reshape(6).contiguous())
            else:
                pool[first].assign(pool[first] * 0.5 - 1)
        Tensor.realize(*pool)
        return [np.asarray(tensor.numpy()).tobytes() for tensor in pool]

    with emulated_card(max_sections=8), Context(VERIFY_GRAPH=1):
        joined = run()
        with Context(JOIN_LAUNCHES=0):
            assert joined == run()


# ---------------------------------------------------------------- text


def test_the_text_of_a_joined_kernel_does_not_grow_with_its_sections() -> None:
    texts = []
    for count in (2, 60):
        (item,) = scheduled(updates(count, 768)).items
        assert item.ast is not None
        program = lower(optimise(item.ast, CARD), CARD, item.ast)
        assert program.sections == count
        assert sorted(argument_slots(program)) == list(range(len(item.slots)))
        assert np.prod(plan_launch(program).grid) % count == 0
        texts.append(render_program(program))
    assert len(texts[1]) - len(texts[0]) < 64


@needs_compiler
@pytest.mark.parametrize("kind", ["update", "sum"])
def test_nvrtc_takes_the_text_of_a_joined_kernel(kind: str) -> None:
    rows = updates(8, 768) if kind == "update" else [Tensor.empty(64, 768).sum(0) for _ in range(8)]
    (item,) = scheduled(rows).items
    assert item.ast is not None
    program = lower(optimise(item.ast, CARD), CARD, item.ast)
    ptx = compile_text(render_program(program), CARD.arch, "PTX").decode()
    assert ".local" not in ptx  # the table is read where the launch has put it, not copied
