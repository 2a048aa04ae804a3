"""The op table: every case of every name of docs/api/tensor.txt, and the page made of it.

Rows stand in rows_*.py by family; `TABLE` is all of them. Names that belong to other issues are listed with theirs.
`python -m tests.ops.table` writes docs/ops.md.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.ops import rows_elementwise, rows_indexing, rows_linalg, rows_reduce, rows_shape, rows_windows
from tests.ops.rows import BOOL, FLOATS, INTS, SIGNED, UNSIGNED, Row
from tilewright import Device

ROOT = Path(__file__).resolve().parents[2]
API_LIST = ROOT / "docs" / "api" / "tensor.txt"
PAGE = ROOT / "docs" / "ops.md"

FAMILIES: dict[str, list[Row]] = {
    "Elementwise": rows_elementwise.ROWS,
    "Shape, creation, random numbers": rows_shape.ROWS,
    "Reductions, sorting, losses": rows_reduce.ROWS,
    "Products and decompositions": rows_linalg.ROWS,
    "Convolution, pooling, resizing": rows_windows.ROWS,
    "Indexing and scattering": rows_indexing.ROWS,
}
TABLE: list[Row] = [row for rows in FAMILIES.values() for row in rows]

# Tested where the reference is not a NumPy expression of one call.
TESTED_ELSEWHERE = {
    "backward": "tests/tensor/test_gradient.py",
    "gradient": "tests/ops/test_table.py, by every row that has one",
    "grad": "tests/tensor/test_gradient.py",
}
LATER = {
    "custom_kernel": "issue 4",
    "shard": "the issue on several devices",
    "shard_": "the issue on several devices",
    "shard_like": "the issue on several devices",
    "from_url": "issue 3, with nn.datasets",
}


def listed_names() -> dict[str, list[str]]:
    """Every name of `Tensor` in the list, with its parameters."""
    found: dict[str, list[str]] = {}
    for line in API_LIST.read_text().splitlines():
        if not line.startswith("Tensor"):
            continue
        for name, parameters in re.findall(r"Tensor\.(\w+)(?:\(((?:[^()]|\([^()]*\))*)\))?", line):
            entries = re.split(r",\s*(?![^()]*\))", parameters)
            found[name] = [entry.split("=")[0].strip().lstrip("*") for entry in entries if entry.strip()]
    return found


def dtypes_text(dtypes: set[str]) -> str:
    """A set of dtypes in few words."""
    groups = {"bool": BOOL, "int8-int64": SIGNED, "uint8-uint64": UNSIGNED, "float8-float64": FLOATS}
    words = []
    rest = set(dtypes)
    for word, group in groups.items():
        if rest >= set(group):
            words.append(word)
            rest -= set(group)
    if rest >= set(FLOATS[:4]):
        words.append("float16-float64, bfloat16")
        rest -= set(FLOATS[:4])
    words += sorted(rest, key=[*BOOL, *INTS, *FLOATS].index)
    return ", ".join(words)


def ops_markdown() -> str:
    """docs/ops.md: each op with its dtypes, devices and gradient, and the cases that are tested."""
    devices = ", ".join(Device)
    lines = [
        "# Ops",
        "",
        "Generated from the op table, `tests/ops/table.py`, by `python -m tests.ops.table`; a test compares.",
        f"Every case runs on {devices} and in the graph interpreter, for all the dtypes named, against NumPy and",
        "SciPy, and against torch where that is installed. Names and parameters are those of `docs/api/tensor.txt`.",
    ]
    for family, rows in FAMILIES.items():
        lines += ["", f"## {family}", "", "| op | dtypes | gradient | devices | cases |", "|---|---|---|---|---|"]
        for op in dict.fromkeys(row.op for row in rows):
            cases = [row for row in rows if row.op == op]
            dtypes = dtypes_text({dtype for row in cases for dtype in row.dtypes})
            gradient = "yes" if any(row.gradient for row in cases) else "no"
            labels = ", ".join(row.label for row in cases if row.label)
            lines.append(f"| `{op}` | {dtypes} | {gradient} | {devices} | {labels} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(ops_markdown())
