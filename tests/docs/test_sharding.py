"""docs/sharding.md: its picture of the layouts is that of the parts."""

from __future__ import annotations

import re

from tests.docs.examples import DOCS

PAGE = DOCS / "sharding.md"


def test_its_table_of_layouts_is_that_of_the_parts() -> None:
    from tilewright import Tensor

    x = Tensor.arange(24).reshape(6, 4).contiguous()
    text = PAGE.read_text()
    for device, (row, column) in {"CPU": ("0:3", "0:2"), "CPU:1": ("3:6", "2:4")}.items():
        assert re.search(rf"^{device} +x\[{row}, :\] +x\[:, {column}\] +x$", text, flags=re.MULTILINE)
    for axis, pick in ((0, lambda n: x[3 * n : 3 * n + 3]), (1, lambda n: x[:, 2 * n : 2 * n + 2])):
        parts = x.shard(("CPU", "CPU:1"), axis).realize().uop.src
        for number, device in enumerate(("CPU", "CPU:1")):
            assert Tensor._from_uop(parts[number], device).tolist() == pick(number).tolist()
