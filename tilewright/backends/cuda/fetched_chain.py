"""Chains whose tiles are fetched by a separate warp group, as CUDA C. In: a `TileChain` with boxes. Out: the text of a
kernel. Stands between `chain_renderer.py`, which writes products and what follows them, and `chain_fetch.py`, which has
the text of barriers and fetches.

The program of a tile of the grid is one function, which fetches in one branch and does all else in the other. A
work-group takes tiles until none is left: while the result of one is stored, the next one is fetched."""

from __future__ import annotations

from tilewright.backends.cuda import chain_fetch
from tilewright.backends.cuda.chain_plan import TileChain
from tilewright.backends.cuda.chain_renderer import ChainRenderer
from tilewright.codegen.c_style.expressions import Expression
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of


class FetchedChainRenderer(ChainRenderer):
    def __init__(self, chain: TileChain, is_restricted: bool = True) -> None:
        super().__init__(chain, is_restricted)
        self.fetched_once: list[str] = []

    def open_launch(self) -> None:
        self.open_group()
        self.text(chain_fetch.open_barriers(self.chain))
        self.text(chain_fetch.open_tiles(self.chain))
        self.emitter.depth += 2
        stride = 1
        for axis in reversed(self.program.global_ranges):
            name, size = self.emitter.axis_name(axis), size_of(axis)
            self.emitter.line(f"const {self.language.type_name(axis.dtype)} {name} = tile / {stride} % {size};")
            self.emitter.values[axis] = {(): Expression(name)}
            stride *= size

    def close_launch(self) -> None:
        self.emitter.depth -= 1
        self.emitter.line("}")
        self.emitter.depth -= 2
        self.text(chain_fetch.close_tiles(self.chain))

    def begin_staging(self) -> None:
        self.text(chain_fetch.fetch_tiles(self.chain, self.stop, self.fetched_once))
        self.emitter.line("else {")
        self.emitter.depth += 1
        self.text(chain_fetch.open_products(self.chain))

    def open_step(self, step: str) -> list[str]:
        return chain_fetch.open_step(self.chain)

    def products_began(self) -> list[str]:
        return chain_fetch.pass_turn(self.chain)

    def first_product_done(self) -> list[str]:
        assert self.chain.loop is not None
        return chain_fetch.first_product_done(self.chain, self.emitter.axis_name(self.chain.loop), self.stop)

    def close_step(self) -> list[str]:
        return chain_fetch.close_step(self.chain)

    def close_steps(self) -> list[str]:
        return chain_fetch.close_steps(self.chain, self.stop)

    def close_products(self) -> list[str]:
        return chain_fetch.close_products(self.stop)

    def copy(self, store: UOp) -> None:
        assert self.chain.boxes is not None
        memory = memory_of(store.src[0])
        box, number = self.chain.boxes[memory], self.chain.memories.index(memory)
        coordinates = [
            [(self.emitter.operand(atom, {}).text, step) for atom, step in form.terms.items()]
            for form in (box.row, box.around)
        ]
        lines = chain_fetch.fetch(box, number, self.memory.names[memory], memory in self.chain.once, *coordinates)
        if memory in self.chain.once:
            self.fetched_once += lines
        else:
            self.text(lines)


def render_chain(chain: TileChain, is_restricted: bool = True) -> str:
    kind = ChainRenderer if chain.boxes is None else FetchedChainRenderer
    return kind(chain, is_restricted).render()
