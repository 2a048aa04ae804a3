"""The CUDA text of a `TileChain` whose tiles a warp group of its own fetches. In: the chain. Out: lines of text.

One thread has the copy engine fetch boxes into a ring of stages, and barriers say when a stage is full and when the
groups that multiply have read it. These go on without waiting for each other: while one computes what follows its
products, the tensor cores have those of another. Registers move from the threads that fetch to those that multiply."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.backends.cuda.boxes import LINE_BYTES, Box
from tilewright.backends.cuda.chain_plan import BARRIER_BYTES, TileChain
from tilewright.backends.cuda.dot_plan import WARP_GROUP
from tilewright.backends.cuda.dot_text import BARRIER_HELPERS, fetch_helper

# Registers of a thread that fetches, and of one that multiplies, by the number of groups that do.
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
    if chain.boxes is None:
        return []
    size = BARRIER_BYTES * chain.stages
    return [
        f"const word full = shared_address(shared) + {chain.ring_end}, empty = full + {size}, first = empty + {size};",
        "if (thread == 0) {",
        "  barrier_start(first, 1);",
        f"  for (int stage = 0; stage < {chain.stages}; stage++) {{",
        f"    barrier_start(full + {BARRIER_BYTES} * stage, 1);",
        f"    barrier_start(empty + {BARRIER_BYTES} * stage, {chain.multipliers});",
        "  }",
        "  barriers_started();",
        "}",
        "__syncthreads();",
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


def fetching_group(chain: TileChain, stop: str, fetched_once: list[str]) -> list[str]:
    """The warp group that fetches, one thread of it. It leaves when the last step is on its way."""
    assert chain.boxes is not None
    once, each = (sum(chain.boxes[memory].nbytes for memory in found) for found in (chain.once, chain.ring))
    first = [f"barrier_expect(first, {once});", *fetched_once] if chain.once else []
    return [
        f"if (thread >= {chain.threads}) {{",
        f'  asm volatile("setmaxnreg.dec.sync.aligned.u32 {REGISTERS[chain.multipliers][0]};");',
        f"  if (thread == {chain.threads}) {{",
        *(f"    {line}" for line in first),
        "    int slot = 0; word phase = 1;",
        "    #pragma unroll 1",
        f"    for (int step = 0; step < {stop}; step++) {{",
        f"      barrier_wait(empty + {BARRIER_BYTES} * slot, phase);",
        f"      barrier_expect(full + {BARRIER_BYTES} * slot, {each});",
        "      stage_step(step, slot);",
        f"      if (++slot == {chain.stages}) {{ slot = 0; phase ^= 1; }}",
        "    }",
        "  }",
        "  return;",
        "}",
    ]


def open_multiplying_groups(chain: TileChain) -> list[str]:
    last = chain.multipliers - 1
    return [
        f'asm volatile("setmaxnreg.inc.sync.aligned.u32 {REGISTERS[chain.multipliers][1]};");',
        f"const int group = thread / {WARP_GROUP};",
        *([f"if (group == {last}) give_turn(0);"] if takes_turns(chain) else []),
        "int slot = 0; word phase = 0;",
        *(["barrier_wait(first, 0);"] if chain.once else []),
    ]


def open_step(chain: TileChain) -> list[str]:
    turn = ["wait_for_turn(group);"] if takes_turns(chain) else []
    return [f"barrier_wait(full + {BARRIER_BYTES} * slot, phase);", *turn]


def pass_turn(chain: TileChain) -> list[str]:
    return [f"give_turn(group == {chain.multipliers - 1} ? 0 : group + 1);"] if takes_turns(chain) else []


def close_step(chain: TileChain) -> list[str]:
    """The stage that was read last is handed back."""
    arrive = f"if (thread % {WARP_GROUP} == 0) barrier_arrive(empty + {BARRIER_BYTES} * "
    done = [f"{arrive}slot);"] if chain.late is None else [f"if (!is_first.value) {arrive}last);", "last = slot;"]
    return [*done, f"if (++slot == {chain.stages}) {{ slot = 0; phase ^= 1; }}"]


def close_multiplying_groups() -> list[str]:
    """The turn that the last group gave away is taken."""
    return ["if (group == 0) wait_for_turn(0);"]
