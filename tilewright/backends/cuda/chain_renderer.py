"""Programs with several TILE_DOTs as CUDA C: attention and its gradients. In: a `TileChain`. Out: the text of a kernel.

The loop that stages tiles is software-pipelined: a function of the number of the step stages it, and runs some steps
ahead, in all threads or in a separate warp group (`chain_fetch.py`). A product is in an array of registers, from which
all else is computed; where the products of all steps are summed, the tensor core adds them itself. An operand in
registers is packed in pairs."""

from __future__ import annotations

import itertools

from tilewright.backends.cuda import chain_fetch, chain_parts, chain_text
from tilewright.backends.cuda.chain_plan import TileChain, axis_product, find_sums
from tilewright.backends.cuda.chain_store import STORE_WIDE, WideStore, find_wide_stores
from tilewright.backends.cuda.dot_mma import name_registers, name_threads
from tilewright.backends.cuda.renderer import CudaLanguage
from tilewright.backends.cuda.tile_plan import ALIGNMENT
from tilewright.backends.cuda.tile_renderer import TileMemory
from tilewright.base.dtype import DType, dtypes
from tilewright.codegen.c_style.expressions import Expression
from tilewright.codegen.c_style.launch import Launch
from tilewright.codegen.c_style.renderer import CStyleRenderer
from tilewright.codegen.tiles import tile_part
from tilewright.graph.affine import affine
from tilewright.graph.ops import Ops
from tilewright.graph.records import Param, Program
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of


class ChainLanguage(CudaLanguage):
    def __init__(self, chain: TileChain, is_restricted: bool) -> None:
        super().__init__(chain.program, is_restricted)
        self.chain = chain

    def prelude(self, program: Program) -> list[str]:
        return [*chain_text.prelude(self.chain.dots), STORE_WIDE, *chain_fetch.prelude(self.chain)]

    def signature(self, program: Program, launch: Launch, params: list[tuple[Param, str]]) -> list[str]:
        arguments = ", ".join([*chain_fetch.parameters(self.chain), *self.arguments(program, params)])
        bounds = f"__launch_bounds__({self.chain.launched_threads}, {self.chain.groups})"
        return [f'extern "C" __global__ void {bounds} {self.kernel_name(program)}({arguments}) {{']

    def unary(self, op: Op, dtype: DType, operand: Expression) -> Expression:
        if op is Ops.EXP2 and dtype is dtypes.float32:
            return Expression(f"exp2_float32({operand.text})")
        return super().unary(op, dtype, operand)


class ChainRenderer(CStyleRenderer):
    def __init__(self, chain: TileChain, is_restricted: bool = True) -> None:
        super().__init__(chain.program, ChainLanguage(chain, is_restricted))
        self.chain = chain
        self.tiles = TileMemory(self.emitter, chain.memories, is_swizzled=True)
        self.memory = self.tiles
        self.copies = self.tiles.find_copies(chain.program)
        self.copied_loads = {store.src[1] for store in self.copies}
        self.loops: list[UOp] = []
        self.in_flight: list[str] = []  # the registers of the products in flight, in order of issue
        self.checks: dict[str, list[str]] = {}  # what follows a product of parts into these registers
        self.replaced = {node for found in chain.rescaled.values() for node in found.replaced}
        self.replaced.update(node.src[0] for node in chain.clipped.values())
        self.sums = find_sums(chain.program)
        self.dot_of = {acc: dot for dot, acc in self.sums.items()}
        self.folded = self._find_folded()
        self.wide = find_wide_stores(chain)

    def _find_folded(self) -> set[UOp]:
        """Accumulators with one update, in the block that declares them: the reduction of a tile needs no initial
        value."""
        homes: dict[UOp, int] = {}
        depth, found = 0, set()
        for node in self.program.body:
            if node.op is Ops.RANGE:
                depth += 1
            elif node.op is Ops.END:
                depth -= 1
            elif node.op is Ops.ACC:
                homes[node] = depth
            elif node.op is Ops.ACCUMULATE and node.src[1] not in self.sums and homes[node.src[0]] == depth:
                if self.facts.axes(node.src[0]) == self.facts.axes(node.src[1]):
                    found.add(node.src[0])
        return found

    def _name_memory(self, params: dict[int, str]) -> None:
        self.memory.names.update({memory: f"tile{memory.arg.slot}" for memory in self.chain.memories})
        super()._name_memory(params)

    def text(self, lines: list[str]) -> None:
        for line in lines:
            self.emitter.line(line)

    def open_group(self) -> None:
        line = self.emitter.line
        line("const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;")
        name_threads(self.emitter, self.chain.dots[0].src[2:4], "thread")
        line(f"unsigned char* const shared = dynamic_shared + (-shared_address(dynamic_shared) & {ALIGNMENT - 1});")
        self._name_tiles(self.chain.once, "shared")

    def _name_tiles(self, memories: tuple[UOp, ...], start: str) -> None:
        for memory in memories:
            kind, name = self.language.memory_type(memory.dtype), self.memory.names[memory]
            self.emitter.line(f"{kind}* const {name} = ({kind}*)({start} + {self.chain.offset(memory)});")

    # ------------------------------------------------------------ the loop that stages tiles

    def open_loop(self, axis: UOp, start: str = "0", stop: str = "") -> None:
        self.loops.append(axis)
        if axis is not self.chain.loop:
            super().open_loop(axis, start, stop)
            return
        size = axis.src[0]
        self.stop = str(size_of(axis)) if size.is_const else self.emitter.operand(size, {}).text
        name = self.emitter.axis_name(axis)
        self.emitter.values[axis] = {(): Expression(name)}
        kind = self.language.type_name(axis.dtype)
        self.emitter.line(f"const auto stage_step = [&](const {kind} {name}, int slot) {{")
        self.emitter.depth += 1
        self._name_tiles(self.chain.ring, self._stage("slot"))

    def _stage(self, slot: str) -> str:
        return f"shared + {self.chain.once_bytes} + {slot} * {self.chain.stage_bytes}"

    def _begin_steps(self) -> None:
        """Ends the function that stages a step, stages the first steps, and begins the loop. A stage is filled again
        once all threads have seen the products of its step done: a step later where one is late. The first step has no
        late product, so it is a separate instance."""
        chain, axis = self.chain, self.chain.loop
        assert axis is not None
        name = self.emitter.axis_name(axis)
        self.emitter.depth -= 1
        self.emitter.line("};")
        self.begin_staging()
        if chain.late is None:
            self.emitter.line("#pragma unroll 1")
            super().open_loop(axis, "0", self.stop)
        else:
            kind = self.language.type_name(axis.dtype)
            self.text([f"word held[{chain.late.arg.length // 4}] = {{}};", "int last = 0;"])
            self.emitter.line(f"const auto run_step = [&](const {kind} {name}, const auto is_first) {{")
            self.emitter.depth += 1
        self.text(self.open_step(name))
        self._name_tiles(chain.ring, self._stage("slot"))

    def close_loop(self) -> None:
        chain = self.chain
        if self.loops.pop() is not chain.loop:
            super().close_loop()
            return
        self._wait_all()
        self.text(self.close_step())
        if chain.late is None:
            super().close_loop()
            self.text(self.close_steps())
            return
        assert chain.loop is not None
        self.emitter.depth -= 1
        self.text(["};", *chain_text.run_steps(self.language.type_name(chain.loop.dtype), self.stop)])
        self.text(self.close_steps())
        self._multiply_late(chain.late)
        self._wait_all()
        self.text(self.close_products())

    # `fetched_chain.py` overrides these, where a separate warp group fetches tiles.

    @property
    def ahead(self) -> int:
        """The number of steps that are staged before they are needed."""
        return self.chain.stages - (1 if self.chain.late is None else 2)

    def begin_staging(self) -> None:
        self.text(chain_text.stage_ahead(self.ahead, self.stop))

    def open_step(self, step: str) -> list[str]:
        return chain_text.open_step(self.ahead, step, self.stop)

    def products_began(self) -> list[str]:
        return []

    def first_product_done(self) -> list[str]:
        return []

    def close_step(self) -> list[str]:
        return chain_text.close_step(self.chain.stages, is_late=self.chain.late is not None)

    def close_steps(self) -> list[str]:
        return []

    def close_products(self) -> list[str]:
        return []

    def copy(self, store: UOp) -> None:
        self.tiles.copy(store, *self.copies[store])

    def _multiply_late(self, dot: UOp) -> None:
        """The product of the values that the threads hold since the last step and the tile of that step."""
        address = f"shared_address({self._stage('last')} + {self.chain.offset(memory_of(dot.src[1]))})"
        self.text(chain_text.multiply(dot, self._array(dot), "held", address, is_added=True))
        self.in_flight.append(self._array(dot))

    # ------------------------------------------------------------ products in flight

    def _wait(self, name: str) -> None:
        """Waits for the product into the registers `name`, if it is in flight, and for those issued before it."""
        if name in self.in_flight:
            count = len(self.in_flight) - self.in_flight[::-1].index(name)
            done, self.in_flight = self.in_flight[:count], self.in_flight[count:]
            is_late = self.chain.late is not None and self._array(self.chain.late) in self.in_flight
            self.text(chain_text.wait(list(dict.fromkeys(done)), len(self.in_flight), is_late))
            if is_late:
                self.text(self.first_product_done())
            for each in done:
                self.text(self.checks.get(each, []))

    def _wait_all(self) -> None:
        if self.in_flight:
            self._wait(self.in_flight[-1])

    def _array(self, dot: UOp) -> str:
        """The registers of a product."""
        if dot in self.chain.rescaled:
            return self.memory.names[self.chain.rescaled[dot].array]
        acc = self.sums.get(dot)
        return f"product{self.chain.dots.index(dot)}" if acc is None else f"total{acc.arg}"

    # ------------------------------------------------------------ nodes

    def emit_node(self, node: UOp) -> None:
        if node in self.copied_loads or node in self.replaced:
            return
        for source in node.src:
            if source.op is Ops.TILE_DOT and not (node.op is Ops.ACCUMULATE and source in self.sums):
                self._wait(self._array(source))
        if node.op is Ops.WHERE and self.chain.clipped.get(node.src[1]) is node:
            self._clip(node)
        elif node in self.copies:
            self.copy(node)
        elif node.op is Ops.BARRIER:
            if node is self.chain.ready:
                self._begin_steps()
            elif self.chain.loop is None or self.chain.loop in self.emitter.values:
                # Tiles that are staged before the loop are waited for with the first step.
                self.text(["copies_sent();", "copies_done<0>();", "stores_done();", "__syncthreads();"])
        elif node in self.wide:
            self._store_wide(node, self.wide[node])
        elif node.op is Ops.TILE_DOT:
            self._multiply(node)
        elif node.op is Ops.ACC and node in self.dot_of:
            self._declare_sum(node)
        elif node.op is Ops.ACC and node in self.folded:
            return
        elif node.op is Ops.ACCUMULATE and node.src[0] in self.folded:
            elements = self.emitter.elements(node.src[0])
            self.emitter.values[node.src[0]] = {at: self.emitter.operand(node.src[1], named) for at, named in elements}
        elif node.op is not Ops.ACCUMULATE or node.src[1] not in self.sums:
            super().emit_node(node)

    def _declare_sum(self, acc: UOp) -> None:
        name, count = f"total{acc.arg}", axis_product(acc)
        self.text([f"float {name}[{count}];", "#pragma unroll", f"for (int n = 0; n < {count}; n++) {name}[n] = 0.0f;"])
        self.emitter.values[acc] = self._elements(acc, self.dot_of[acc], name)

    def _multiply(self, node: UOp) -> None:
        name, is_added = self._array(node), node in self.sums or node in self.chain.rescaled
        if node in self.chain.rescaled:
            self._rescale(node)
        elif not is_added:
            self.emitter.line(f"float {name}[{chain_text.columns_of(node) // 2}];")
        if node is self.chain.late:
            self.text([f"held[{number}] = {_packed(pair)};" for number, pair in enumerate(self._pairs(node))])
            return
        left = self._pack(node) if node.arg.left is None else self._address(node.src[0])
        self.text(chain_text.multiply(node, name, left, self._address(node.src[1]), is_added))
        if node.arg.parts > 1:
            self.checks[name] = self._check(node, name, left)
        self.in_flight.append(name)
        self.emitter.values[node] = self._elements(node, node, name)
        if self.chain.late is not None:
            self.emitter.line("if constexpr (!is_first.value) {")
            self.emitter.depth += 1
            self._multiply_late(self.chain.late)
            self.emitter.depth -= 1
            self.emitter.line("}")
            self.text(self.products_began())

    def _rescale(self, node: UOp) -> None:
        name, factor = self._array(node), self.chain.rescaled[node].factor
        self._wait(name)
        for coordinates, register in self._elements(node, node, name).items():
            at = dict(zip(self.facts.axes(node), coordinates, strict=True))
            self.emitter.line(f"{register.text} *= {self.emitter.operand(factor, at).text};")

    def _clip(self, node: UOp) -> None:
        """Replaces elements of the product, in its registers, by a constant where the comparison fails. One test skips
        it for a tile in which none fails: few tiles are at an edge."""
        condition, dot, other = node.src
        registers = self._elements(node, dot, self._array(dot))
        worst = []
        for number, is_left in zip(condition.src, (True, False)):
            steps = affine(number).terms
            at = {a: size_of(a) - 1 if (steps.get(a, 0) > 0) is is_left else 0 for a in self.facts.axes(node)}
            worst.append(self.emitter.operand(number, at))
        self.emitter.line(f"if (!({self._spell(condition, worst).text})) {{")
        self.emitter.depth += 1
        constant = self.emitter.operand(other, {}).text
        for coordinates, register in registers.items():
            at = dict(zip(self.facts.axes(node), coordinates, strict=True))
            kept = self._spell(condition, [self.emitter.operand(number, at) for number in condition.src]).text
            self.emitter.line(f"if (!({kept})) {register.text} = {constant};")
        self.emitter.depth -= 1
        self.emitter.line("}")
        self.emitter.values[node] = registers

    def _address(self, memory: UOp) -> str:
        return f"shared_address({self.memory.names[memory_of(memory)]})"

    def _check(self, node: UOp, name: str, left: str) -> list[str]:
        tiles = [self.memory.names.get(memory_of(source), "") for source in node.src[:2]]
        held = node.arg.length // 2 if node.arg.left is None else 0
        given = (f"{left}_numbers" if held else tiles[0], tiles[1], held)
        return chain_parts.check(name, chain_text.columns_of(node) // 2, chain_text.helper_name(node), *given)

    def _pack(self, node: UOp) -> str:
        """The left operand in registers."""
        name, pairs = self.emitter.fresh("held"), self._pairs(node)
        if node.arg.parts > 1:
            numbers = ", ".join(number for pair in pairs for number in pair)
            self.text(
                [
                    f"const float {name}_numbers[{2 * len(pairs)}] = {{{numbers}}};",
                    f"word {name}[{node.arg.parts * len(pairs)}];",
                    f"split_pairs<{len(pairs)}>({name}_numbers, {name});",
                ]
            )
        else:
            self.emitter.line(f"const word {name}[{len(pairs)}] = {{{', '.join(map(_packed, pairs))}}};")
        return name

    def _pairs(self, node: UOp) -> list[tuple[str, str]]:
        """For each instruction's part of the sum: two adjacent elements of both rows, and the two 8 further on."""
        value, forms = node.src[0], [affine(number).terms for number in node.src[4:6]]
        found: dict[tuple[int, int], str] = {}
        for _, at in self.emitter.elements(value):
            row, step = (sum(steps * at[axis] for axis, steps in form.items() if axis in at) for form in forms)
            found[row, step] = self.emitter.operand(value, at).text
        return [
            (found[row, first + step], found[row, first + step + 1])
            for first in range(0, node.arg.length, chain_text.STEP)
            for step in (0, 8)
            for row in (0, 8)
        ]

    def _store_wide(self, store: UOp, wide: WideStore) -> None:
        """Four pairs of columns at a time, which four threads exchange for eight adjacent columns each."""
        index, (value, group, pair) = store.src[0], wide
        base, steps = tile_part(index.src[1])
        axes = [axis for axis in self.facts.axes(store) if axis not in (group, pair)]
        start = "0" if base is None else self.emitter.operand(base, {}).text
        name = self.memory.names[memory_of(index)]
        for others in itertools.product(*(range(size_of(axis)) for axis in axes)):
            at = dict(zip(axes, others))
            mask = self.emitter.operand(index.src[2], at).text if len(index.src) > 2 else "true"
            for first in range(0, size_of(group), 4):
                words = []
                for number in range(first, first + 4):
                    low, high = (self.emitter.operand(value, {**at, group: number, pair: n}).text for n in (0, 1))
                    words.append(_packed((low, high)))
                offset = sum(step * {**at, group: first, pair: 0}[axis] for axis, step in steps.items())
                self.emitter.line(f"store_wide({name} + {start} + {offset}, {', '.join(words)}, thread, {mask});")

    def _elements(self, node: UOp, dot: UOp, name: str) -> dict[tuple[int, ...], Expression]:
        """The registers that hold a thread's elements of a product."""

        def register(row: int, column: int) -> str:
            return f"{name}[{column // 8 * 4 + row // 8 * 2 + column % 2}]"

        return name_registers(self.emitter, node, dot.src[2:4], register)


def _packed(pair: tuple[str, str]) -> str:
    return f"pack({pair[0]}, {pair[1]})"
