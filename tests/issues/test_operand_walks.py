"""The operands of an inner loop are found in one walk over its lines: one that followed every path took twice as long
for each line that reads another twice, and the compile of a hash inside a reduction did not end."""

from __future__ import annotations

import numpy as np

from tilewright import Tensor
from tilewright.backends.cpu.rendering.operand_order import Body

ROUNDS = 18


class Counting(Body):
    walked = 0

    def _operands(self, name: str) -> list[str]:
        self.walked += 1
        return super()._operands(name)


def test_each_line_is_walked_once_for_an_update() -> None:
    lines = ["  %x0 = load <4 x i32>, ptr %p, align 4"]
    lines += [f"  %x{n + 1} = add <4 x i32> %x{n}, %x{n}" for n in range(ROUNDS)]
    lines += [f"  %s{n} = add <4 x i32> %old{n}, %x{ROUNDS}" for n in range(2)]
    body = Counting(lines, ["%s0", "%s1"], 16)
    assert body.registers() == (1, 1)
    assert body.is_shared()
    assert body.walked <= 2 * len(lines)


def test_a_hash_inside_a_reduction() -> None:
    given = np.arange(1, 1001, dtype=np.uint32).reshape(4, 250)
    found, expected = Tensor(given, device="CPU"), given.copy()
    for _ in range(12):
        for shift in (13, 5):
            found = found ^ (found << shift)
            expected = expected ^ (expected << np.uint32(shift))
        found = found ^ (found >> 17)
        expected = expected ^ (expected >> np.uint32(17))
    np.testing.assert_array_equal(found.max(1).numpy(), expected.max(1))
