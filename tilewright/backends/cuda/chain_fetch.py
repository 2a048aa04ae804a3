"""The CUDA text of a `TileChain` whose tiles are fetched by a separate warp group. In: the chain. Out: lines of text.

One thread has the copy engine fetch boxes into a ring of stages, and barriers say when a stage is full and when the
groups that multiply have read it. The groups do not wait for each other: while one computes what follows its products,
the tensor cores compute those of another. Registers move from the threads that fetch to those that multiply."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.backends.cuda.boxes import LINE_BYTES, Box
from tilewright.backends.cuda.chain_plan import BARRIER_BYTES, TileChain
from tilewright.backends.cuda.dot_plan import WARP_GROUP
from tilewright.backends.cuda.dot_text import BARRIER_HELPERS, fetch_helper

# Registers of a thread that fetches and of one that multiplies, by the number of groups that multiply.
REGISTERS = {2: (24, 240), 3: (32, 160)}
# Groups take turns in starting their products: the one after this one waits at its barrier.
_TURNS = """\
__device__ inline void wait_for_turn(int group) { asm volatile("bar.sync %0, 256;" :: "r"(group + 1) : "memory"); }
__device__ inline void give_turn(int group) { asm volatile("bar.arrive %0, 256;" :: "r"(group + 1) : "memory"); }"""

Terms = Sequence[tuple[str, int]]


def takes_turns(chain: TileChain) -> bool:
    return chain.late is not None


def prelude(chain: TileChain) -> list[str]:
    if chain.boxes is None:
        return []
    return [BARRIER_HELPERS, fetch_helper(3), *([_TURNS] if takes_turns(chain) else [])]


def parameters(chain: TileChain) -> list[str]:
    return [f"const __grid_constant__ TensorMap map{number}" for number in range(len(chain.maps))]


def open_barriers(chain: TileChain) -> list[str]:
    """Two barriers of each stage, for full and for read; and the same two for the tiles that are fetched once."""
    size = BARRIER_BYTES * chain.stages
    return [
        f"const word full = shared_address(shared) + {chain.ring_end}, empty = full + {size};",
        f"const word first = empty + {size}, spare = first + {BARRIER_BYTES};",
        "if (thread == 0) {",
        f"  barrier_start(first, 1); barrier_start(spare, {chain.multipliers});",
        f"  for (int stage = 0; stage < {chain.stages}; stage++) {{",
        f"    barrier_start(full + {BARRIER_BYTES} * stage, 1);",
        f"    barrier_start(empty + {BARRIER_BYTES} * stage, {chain.multipliers});",
        "  }",
        "  barriers_started();",
        "}",
        "__syncthreads();",
        f"const int group = thread / {WARP_GROUP};",
    ]


def open_tiles(chain: TileChain) -> list[str]:
    """The function that goes through a work-group's tiles. A barrier is waited for with the parity of its uses: for
    the thread that fetches, all memory counts as read at first."""
    return [
        "const auto run_tiles = [&](const auto is_fetching) {",
        "  int slot = 0;",
        "  word phase = is_fetching.value, turn = is_fetching.value;",
        "  #pragma unroll 1",
        f"  for (int run = blockIdx.x; run < {chain.runs}; run += gridDim.x)",
        "  #pragma unroll 1",
        f"  for (int tile = run * {chain.run}; tile < run * {chain.run} + {chain.run}; tile++) {{",
    ]


def close_tiles(chain: TileChain) -> list[str]:
    """The first group that multiplies has the first turn, which it takes back from the last group at the end."""
    fetching, multiplying = REGISTERS[chain.multipliers]
    turns = takes_turns(chain)
    return [
        "  }",
        "};",
        f"if (thread >= {chain.threads}) {{",
        f'  asm volatile("setmaxnreg.dec.sync.aligned.u32 {fetching};");',
        f"  if (thread == {chain.threads}) run_tiles(Flag<true>());",
        "} else {",
        f'  asm volatile("setmaxnreg.inc.sync.aligned.u32 {multiplying};");',
        *([f"  if (group == {chain.multipliers - 1}) give_turn(0);"] if turns else []),
        "  run_tiles(Flag<false>());",
        *(["  if (group == 0) wait_for_turn(0);"] if turns else []),
        "}",
    ]


def fetch(box: Box, number: int, tile: str, is_once: bool, row: Terms, around: Terms) -> list[str]:
    """The boxes of a tile, one for each column of lines."""
    barrier = "first" if is_once else f"full + {BARRIER_BYTES} * slot"
    where = ", ".join(_coordinate(*each) for each in ((row, box.row.constant), (around, box.around.constant)))
    columns = LINE_BYTES // box.map.itemsize
    return [
        f"fetch(shared_address({tile}) + {part * box.rows * LINE_BYTES}, &map{number}, {barrier}, {part * columns}, "
        f"{where});"
        for part in range(box.parts)
    ]


def _coordinate(terms: Terms, constant: int) -> str:
    words = [*(f"{text} * {step}" for text, step in terms), str(constant)]
    return f"(int)({' + '.join(words)})"


def fetch_tiles(chain: TileChain, stop: str, fetched_once: list[str]) -> list[str]:
    """The code that fetches for one tile of the grid. The first stage is free before the tiles that are fetched
    once."""
    assert chain.boxes is not None
    once, each = (sum(chain.boxes[memory].nbytes for memory in found) for found in (chain.once, chain.ring))
    first = [
        "const auto fetch_once = [&] {",
        "  barrier_wait(spare, turn);",
        f"  barrier_expect(first, {once});",
        *(f"  {line}" for line in fetched_once),
        "  turn ^= 1;",
        "};",
    ]
    return [
        "if constexpr (is_fetching.value) {",
        *(f"  {line}" for line in (first if chain.once else ())),
        "  #pragma unroll 1",
        f"  for (int step = 0; step < {stop}; step++) {{",
        f"    barrier_wait(empty + {BARRIER_BYTES} * slot, phase);",
        f"    barrier_expect(full + {BARRIER_BYTES} * slot, {each});",
        "    stage_step(step, slot);",
        *(["    if (step == 0) fetch_once();"] if chain.once else ()),
        f"    if (++slot == {chain.stages}) {{ slot = 0; phase ^= 1; }}",
        "  }",
        *([f"  if (!(0 < {stop})) fetch_once();"] if chain.once else ()),
        "}",
    ]


def open_products(chain: TileChain) -> list[str]:
    return ["barrier_wait(first, turn);", "turn ^= 1;"] if chain.once else []


def open_step(chain: TileChain) -> list[str]:
    turn = ["wait_for_turn(group);"] if takes_turns(chain) else []
    return [f"barrier_wait(full + {BARRIER_BYTES} * slot, phase);", *turn]


def pass_turn(chain: TileChain) -> list[str]:
    return [f"give_turn(group == {chain.multipliers - 1} ? 0 : group + 1);"] if takes_turns(chain) else []


def close_step(chain: TileChain) -> list[str]:
    """Hands back the stage that was read last."""
    done = (
        [_arrive(_empty("slot"))]
        if chain.late is None
        else [_arrive(_empty("last"), "!is_first.value"), "last = slot;"]
    )
    return [*done, f"if (++slot == {chain.stages}) {{ slot = 0; phase ^= 1; }}"]


def reads_once_first(chain: TileChain) -> bool:
    """Whether nothing but the first product of a step reads the tiles that are fetched once."""
    return chain.late is not None and bool(chain.once) and chain.dots[0].arg.left is not None


def first_product_done(chain: TileChain, step: str, stop: str) -> list[str]:
    """After the first product of the last step, hands back the tiles that were fetched once."""
    return [_arrive("spare", f"{step} == {stop} - 1")] if reads_once_first(chain) else []


def close_steps(chain: TileChain, stop: str) -> list[str]:
    """Hands back the tiles that were fetched once."""
    if reads_once_first(chain):
        return [_arrive("spare", f"!(0 < {stop})")]
    return [_arrive("spare")] if chain.once else []


def close_products(stop: str) -> list[str]:
    """Hands back the last stage, which the late product has read."""
    return [_arrive(_empty("last"), f"0 < {stop}")]


def _empty(slot: str) -> str:
    return f"empty + {BARRIER_BYTES} * {slot}"


def _arrive(barrier: str, condition: str = "") -> str:
    conditions = [*([condition] if condition else []), f"thread % {WARP_GROUP} == 0"]
    return f"if ({' && '.join(conditions)}) barrier_arrive({barrier});"
