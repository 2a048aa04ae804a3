"""What failed, and why, as a plugin of pytest. In: the reports of a run under `alias`. Out: a table at its end: the
failures by class and kind, and those that no rule knows, which are to be looked at one by one."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, NamedTuple


class Rule(NamedTuple):
    """Failures whose test, line or error has the pattern. `family` is outside (network, other packages), feature (one
    that we lack), design (another answer, on purpose) or internal (to tinygrad)."""

    family: str
    kind: str
    pattern: str


# The first rule that fits decides.
RULES = (
    Rule(
        "design",
        "symbolic sizes fit for all values of a variable, which has a value",
        r"same for all values|has no value\s|for all values|SymbolicInt.*has no attribute|has min\(|may be 0",
    ),
    Rule("outside", "network", r"alias: network|gaierror|urlopen"),
    Rule("outside", "other packages", r"No module named '"),
    Rule("internal", "`Tensor.callify`", r"callify"),
    Rule("internal", "`UOp.const` and other methods of its nodes", r"'UOp'( object)? has no attribute"),
    Rule("feature", "`Invalid`", r"Invalid|_invalid_"),
    Rule("feature", "Q1_0 in a GGUF file", r"Q1_0"),
    Rule("feature", "`Tensor.call`, `as_param`", r"'call'|as_param|is_param\b"),
    Rule("feature", "`jit(prune=)`", r"prune"),
    Rule("feature", "`newton_schulz`", r"newton_schulz"),
    Rule("feature", "`nn.state.TensorIO`", r"TensorIO"),
    Rule("feature", "a GGUF file in several parts", r"test_multi_part_load"),
    Rule("feature", "pickling a jitted function that is defined inside another", r"Can't pickle local|TestPickleJIT"),
    Rule("feature", "`WINO=1`", r"[wW]inograd"),
    Rule("feature", "`fp8e4m3fnuz`, `fp8e5m2fnuz`", r"fnuz"),
    Rule("feature", "negative padding of a convolution", r"negative_padding"),
    Rule("feature", "a list of bytes", r"the data holds bytes"),
    Rule("feature", "shards over two axes", r"Test2DShard"),
    Rule("feature", "`UOp.range(dtype=)`", r"make_range\(\) got an unexpected"),
    Rule(
        "design",
        "weak dtypes: Python numbers are weak, tensors are not",
        r"weak(int|float)|TestWeak|'const'|_broadcasted",
    ),
    Rule(
        "design",
        "`requires_grad`",
        r"no tensor that requires a gradient|has no part in the result|has no identity|grad(\.numpy\(\)| is not None)",
    ),
    Rule(
        "design",
        "jit is right where theirs refuses or replays",
        r"JitError.*not raised|JitFootguns|_jit_buffer|jit_jit",
    ),
    Rule(
        "design",
        "runs where theirs refuses, or is right where the test pins a fault",
        r"not raised|war_reader|swap_rows",
    ),
    Rule(
        "design",
        "runs where theirs refuses, or is right where the test pins a fault",
        r"test_iadd|Unexpected success|persistent_output|test_attention_training",
    ),
    Rule("design", "int64 of sums and `argmax`", r"int64 (==|!=) dtypes.int32|int64 values for a tensor of int32"),
    Rule(
        "design",
        "dtypes of NumPy, their names and promotion",
        r"test_to_np|dtypes\.float\"|test_fp8|'<' not|bool matrices",
    ),
    Rule(
        "design",
        "dtypes of NumPy, their names and promotion",
        r"test_promo|test_truncate|bitsize|dtype_range|from_py|finfo",
    ),
    Rule(
        "design", "`grad_fxn` is given the gradient and the inputs", r"takes \d positional arguments but \d were given"
    ),
    Rule("design", "tensors of the CPU are host memory", r"pickle_oob_ram"),
    Rule("design", "`allclose` gives a bool", r"'bool' object has no attribute 'item'"),
    Rule("design", "`Tensor(None)` is refused", r"NoneType holds no numbers"),
    Rule(
        "design",
        "shapes: `qr`, `data()`, a device twice, labels",
        r"qr_general|data_empty_multi|a device twice|one class for|do not split into|gradient= has",
    ),
    Rule(
        "design",
        "numbers: NaN, out of range, rounding",
        r"acosh|sigmoid_alt|interpolate_bi|of range|cannot hold|no elements|of int32 is not defined",
    ),
    Rule(
        "design", "another sequence of random numbers", r"randperm|threefry|uniform numbers in|_device_rng|test_rand_on"
    ),
    Rule(
        "internal",
        "stubs and stand-ins of the alias",
        r"alias: internals|_M\b|_Refusing|_Renderer|_NoTarget|Stub|PicklingError",
    ),
    Rule(
        "internal",
        "schedules and their numbers",
        r"schedule_linear|linear_with_vars|check_schedule|global_mem|[kK]ernel_?[cC]ount",
    ),
    Rule(
        "internal",
        "schedules and their numbers",
        r"schedule_cache|_allocated|strict: self|non-iterable NoneType|mem\[|mem_used",
    ),
    Rule(
        "internal",
        "the jit's own records",
        r"captured|'func'|jit_cache|MultiGraphRunner|jit_batch|'graph'|graph is None",
    ),
    Rule(
        "internal",
        "nodes, devices, options",
        r"\.uop\b|UOp|Ops\.|DEV|Device[.\[]|DiskDevice|renderer|_METADATA|is no place|has no value in memory",
    ),
    Rule(
        "internal",
        "nodes, devices, options",
        r"BufferArg|'int' object is not sub|assertIsNone\(c\.device|tracemeta|assertIs\(a|ba1 ==|as_memoryview|'expr'",
    ),
    Rule(
        "internal",
        "nodes, devices, options",
        r"ContextVar|v2\.value|code objects|_env_raises|contiguous'|sink:|image_conv2d",
    ),
)
FAMILIES = ("outside", "feature", "design", "internal")


def class_of(text: str) -> tuple[str, str]:
    """The family and the kind of a failure, from its name and the end of its report."""
    for rule in RULES:
        if re.search(rule.pattern, text):
            return rule.family, rule.kind
    return "unknown", text.replace("\n", " ")[-300:]


def text_of(report: Any) -> str:
    """The test, the last line of a test file that was running, and the error."""
    lines = str(report.longrepr).splitlines()
    shown = [
        line for number, line in enumerate(lines) if number and re.match(r"(\S*/)?test/\S+:\d+: ", lines[number - 1])
    ]
    errors = [line for line in lines if line.startswith("E  ")]
    return "\n".join([report.nodeid, *shown[-1:], *errors[:12], *([] if errors else lines[-3:])])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    stats = terminalreporter.stats
    reports = {report.nodeid: report for kind in ("failed", "error") for report in stats.get(kind, [])}
    found = Counter(class_of(text_of(report)) for report in reports.values())
    terminalreporter.section("classes of failures")
    for family in (*FAMILIES, "unknown"):
        rows = sorted((kind, count) for (name, kind), count in found.items() if name == family)
        terminalreporter.write_line(f"{family}: {sum(count for _, count in rows)}")
        for kind, count in rows:
            terminalreporter.write_line(f"  {count:4} {kind}")
