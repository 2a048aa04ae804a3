"""The registry of transforms: one record each, with a golden text; and what adding a transform takes, shown by adding
one. CONTRIBUTING.md names the same steps."""

from __future__ import annotations

import enum
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.opts import TARGETS, WEIGHTS, Pair, check_pair
from tests.golden.texts import CPU, FOLDER, TRANSFORMED, check_golden
from tests.kernel.kernels import ORDERED, SCHEDULED, contents, expected, kernel
from tilewright.backends.cpu.rendering.renderer import render
from tilewright.backends.opencl.language import OpenCLLanguage
from tilewright.base.errors import KernelOptError
from tilewright.base.target import Target
from tilewright.codegen.c_style.renderer import CStyleRenderer
from tilewright.codegen.pipeline import lower
from tilewright.graph.records import KernelInfo, Opt, OptOps
from tilewright.kernel import optimise as stage
from tilewright.kernel.apply import apply_opt, candidate_opts
from tilewright.kernel.axes import view_kernel
from tilewright.kernel.prepare.accumulators import recognise_accumulators
from tilewright.kernel.transforms.registry import TRANSFORMS

GRID = Target("GRID", has_local=True, max_local_bytes=1 << 15, max_group_size=256, native_ops=CPU.native_ops)


def test_every_name_has_one_record() -> None:
    assert set(TRANSFORMS) == set(OptOps)
    assert all(record.op is op and record.argument for op, record in TRANSFORMS.items())


@pytest.mark.parametrize("op", TRANSFORMS)
def test_the_docstring_shows_the_program_before_and_after(op: OptOps) -> None:
    before, _, after = TRANSFORMS[op].example.partition("after:")
    assert before.strip().startswith("before:")
    assert after.strip()


@pytest.mark.parametrize("op", sorted(set(OptOps) - {OptOps.TC}, key=lambda op: op.name))
def test_every_transform_has_a_golden_text(op: OptOps, request: pytest.FixtureRequest) -> None:
    """LLVM IR, and OpenCL C where it takes work-groups. Those of TC are CUDA's (tests/backends/test_cuda_text.py)."""
    name, opts = TRANSFORMED[op]
    assert opts[-1].op is op
    target = GRID if TRANSFORMS[op].needs_groups else CPU
    ast = kernel(name).replace(arg=KernelInfo(op.value, opts))
    program = lower(stage.optimise(ast, target), target)
    if target is CPU:
        check_golden(f"transform_{op.value}.ll", render(program, "kernel"), request)
    else:
        check_golden(f"transform_{op.value}.cl", CStyleRenderer(program, OpenCLLanguage(program)).render(), request)


def test_the_fuzzer_tries_every_transform() -> None:
    """Random opts on the emulator are the property test of each; tests/kernel/test_tensor_core.py is that of TC."""
    assert set(WEIGHTS) == set(TRANSFORMS) - {OptOps.TC}
    assert (FOLDER / "warp_group_product.cuda").exists()


# ---------------------------------------------------------------- adding one


class Toys(enum.Enum):
    """Stands for a new name in `OptOps`."""

    REVERSE = "reverse"


# The one file that a new transform is.
FILE = '''"""REVERSE: a loop runs backwards. In: a kernel, a loop. Out: the kernel with it reversed.

    before: for i in 8: out[i] = a[i]
    after:  for i in 8: out[7 - i] = a[7 - i]"""

from collections.abc import Iterator

from tests.kernel.test_registry import Toys
from tilewright.graph.ops import AxisType
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of, substitute
from tilewright.kernel.analysis.dependence import check_order, has_effects
from tilewright.kernel.axes import KernelView, is_counted
from tilewright.kernel.transforms.common import Transform, prefixed


def check_reverse(view: KernelView, axis: UOp, argument: object) -> str | None:
    position = view.axes.index(axis)
    if argument is not None:
        return f"REVERSE takes no argument, {argument!r} is one"
    if axis.arg.kind is not AxisType.LOOP or not is_counted(axis) or has_effects(view):
        return f"REVERSE needs an output loop of known size, axis {position} is {axis.arg.kind.name}"
    return prefixed("REVERSE", check_order(view, axis))


def apply_reverse(view: KernelView, axis: UOp, argument: object) -> UOp:
    from tilewright.kernel.axes import make_range

    fresh = make_range(size_of(axis), (*axis.arg.id, 0), axis.arg.kind)
    return substitute(view.sink, {axis: fresh * -1 + (size_of(axis) - 1)})


def reverse_candidates(view: KernelView) -> Iterator[tuple[UOp, None]]:
    for axis in view.of_kind(AxisType.LOOP):
        if check_reverse(view, axis, None) is None:
            yield axis, None


REVERSE = Transform(Toys.REVERSE, check_reverse, apply_reverse, reverse_candidates, "no argument")
'''


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The file loaded, and its line in the registry."""
    path = tmp_path_factory.mktemp("transforms") / "reverse.py"
    path.write_text(FILE)
    spec = importlib.util.spec_from_file_location("reverse", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["reverse"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    TRANSFORMS[module.REVERSE.op] = module.REVERSE
    yield module
    del TRANSFORMS[module.REVERSE.op], sys.modules["reverse"]


def test_a_new_transform_is_applied_refused_and_shown(toy: ModuleType) -> None:
    opt = Opt(Toys.REVERSE, 1)  # type: ignore[arg-type]
    made = apply_opt(kernel("transposed"), opt)
    assert made is not kernel("transposed")
    data = contents(kernel("transposed"))
    for slot, values in expected(made, data).items():
        np.testing.assert_array_equal(values, expected(kernel("transposed"), data)[slot])
    with pytest.raises(KernelOptError, match=r"(?s)axis 1 is REDUCE.*REVERSE takes no argument"):
        apply_opt(kernel("row_sums"), opt)
    with pytest.raises(KernelOptError, match="takes no argument, 3 is one"):
        apply_opt(kernel("transposed"), Opt(Toys.REVERSE, 1, 3))  # type: ignore[arg-type]
    assert "out[7 - i] = a[7 - i]" in TRANSFORMS[toy.REVERSE.op].example
    assert repr(opt) == "Opt(OptOps.REVERSE, 1, None)"


def test_search_proposes_a_new_transform(toy: ModuleType) -> None:
    proposed = [opt for opt in candidate_opts(view_kernel(kernel("transposed"), CPU)) if opt.op is toy.REVERSE.op]
    assert [opt.axis for opt in proposed] == [0, 1]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(name=st.sampled_from(SCHEDULED + ORDERED), number=st.integers(0, 3), target=st.sampled_from(TARGETS))
def test_a_new_transform_changes_nothing_on_the_emulator(
    toy: ModuleType, name: str, number: int, target: Target
) -> None:
    view = view_kernel(recognise_accumulators(kernel(name)), target)
    proposed = [axis for axis, _ in toy.reverse_candidates(view)]
    if proposed:
        reverse = Opt(toy.REVERSE.op, view.axes.index(proposed[number % len(proposed)]))
        failure = check_pair(Pair(number, name, kernel(name), (reverse,), target))
        assert failure is None, failure
