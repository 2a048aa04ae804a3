"""The op table: every case of every name of docs/api/tensor.txt, and the page made of it.

Rows stand in rows_*.py by family; `TABLE` is all of them. Names that have no row stand here with the reason.
`make docs` writes docs/ops.md.
"""

from __future__ import annotations

from tests.devices import DTYPES, ONE_IN, QUICK
from tests.ops import rows_elementwise, rows_families, rows_indexing, rows_linalg, rows_reduce, rows_shape, rows_windows
from tests.ops.rows import BOOL, FLOATS, INTS, SIGNED, UNSIGNED, Row

FAMILIES: dict[str, list[Row]] = {
    "Elementwise": rows_elementwise.ROWS,
    "Shape, creation, random numbers": rows_shape.ROWS,
    "Reductions, sorting, losses": rows_reduce.ROWS,
    "Products and decompositions": rows_linalg.ROWS,
    "Convolution, pooling, resizing": rows_windows.ROWS,
    "Indexing and scattering": rows_indexing.ROWS,
    "Further names of torch and NumPy": rows_families.ROWS,
}
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
    """docs/ops.md: each op with its dtypes and gradient, and the cases that are tested."""
    lines = [
        "# Ops",
        "",
        "Made from the op table, `tests/ops/table.py`, by `make docs`. Names and parameters are those of",
        "`docs/api/tensor.txt`. A reference in NumPy or SciPy checks values, central differences check gradients, and",
        "`make test-torch` compares both with torch. Of the gradients that torch has, `make test` checks every second.",
        "The last column names the cases beside that of ordinary inputs. CPU runs a case in another dtype than PYTHON.",
        "",
        "| `make test` runs | in |",
        "|---|---|",
        *(
            f"| every case on {device}, where the machine has it | {DTYPES.get(device, 'one')} of its dtypes |"
            for device in sorted(QUICK)
        ),
        "| every case but `svd`, which iterates, in the graph interpreter | one of its dtypes |",
        *(f"| one case in {share} on {device} | one of its dtypes |" for device, share in ONE_IN.items()),
        "",
        "CPU-clang and CPU-gcc are the CPU device with `CPU_COMPILER=clang` and `gcc`; the first of the two that is",
        "installed is taken. `make test-devices` runs every case in all its dtypes on every device of the machine. A",
        "dtype that a device does not compute with (`Target.computes`) is skipped there.",
    ]
    for family, rows in FAMILIES.items():
        lines += ["", f"## {family}", "", "| op | dtypes | gradient | cases |", "|---|---|---|---|"]
        for op in dict.fromkeys(row.op for row in rows):
            cases = [row for row in rows if row.op == op]
            dtypes = dtypes_text({dtype for row in cases for dtype in row.dtypes})
            gradient = "yes" if any(row.gradient for row in cases) else "no"
            labels = ", ".join(row.label for row in cases if row.label)
            lines.append(f"| `{op}` | {dtypes} | {gradient} | {labels} |")
    return "\n".join(lines) + "\n"
