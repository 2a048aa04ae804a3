"""The op table: every case of every name of docs/api/tensor.txt, and the page made of it.

Rows stand in rows_*.py by family; `TABLE` is all of them. Names that have no row stand here with the reason.
`python -m tests.ops.table` writes docs/ops.md.
"""

from __future__ import annotations

from tests.ops import rows_elementwise, rows_families, rows_indexing, rows_linalg, rows_reduce, rows_shape, rows_windows
from tests.ops.listing import ROOT
from tests.ops.rows import BOOL, FLOATS, INTS, SIGNED, UNSIGNED, Row
from tilewright import Device

PAGE = ROOT / "docs" / "ops.md"

FAMILIES: dict[str, list[Row]] = {
    "Elementwise": rows_elementwise.ROWS,
    "Shape, creation, random numbers": rows_shape.ROWS,
    "Reductions, sorting, losses": rows_reduce.ROWS,
    "Products and decompositions": rows_linalg.ROWS,
    "Convolution, pooling, resizing": rows_windows.ROWS,
    "Indexing and scattering": rows_indexing.ROWS,
    "Further names of torch and NumPy": rows_families.ROWS,
}
# Devices that write kernels and run none, or have run none so far.
WITHOUT_RESULTS = {"DISK", "NULL", "HIP", "METAL"}
TABLE: list[Row] = [row for rows in FAMILIES.values() for row in rows]

# Names without a row, and why: the reference is not a NumPy expression of one call.
TESTED_ELSEWHERE = {
    "backward": "tests/tensor/test_backward.py",
    "gradient": "tests/ops/test_table.py, by every row that has one",
    "grad": "tests/tensor/test_backward.py",
    "custom_kernel": "tests/tensor/test_custom.py: what it computes is the kernel that a user writes",
    "shard": "tests/tensor/test_sharding.py: the value is that of the tensor, on several devices",
    "shard_": "tests/tensor/test_sharding.py",
    "shard_like": "tests/tensor/test_sharding.py",
}


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
    devices = ", ".join(name for name in Device if name not in WITHOUT_RESULTS)
    lines = [
        "# Ops",
        "",
        "Generated from the op table, `tests/ops/table.py`, by `python -m tests.ops.table`; a test compares.",
        f"Every case runs on each of {devices} that a machine has, and in the graph interpreter, for all the",
        "dtypes named, against NumPy and SciPy, and against torch where that is installed. Names and parameters are",
        "those of `docs/api/tensor.txt`.",
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
