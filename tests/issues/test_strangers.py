"""Random programs beside torch's, as people write them who come from elsewhere, and what they found.

* The gradient of `scatter_add` ended where the values for one position sum to 0: where they are all 0, for example.
* The gradient of `atan2` was 0 on both axes, where the ratio of the coordinates is.
* The gradient of `erfinv` was 0 at -1 and 1 and outside of them.
* `x / -1` of an unsigned tensor divided by its greatest number; `x / 300` of uint8 was refused.
* `maximum(-1)` of an unsigned tensor was its greatest number; `copysign(-1)` lost the sign.
* `hypot` of an int32 tensor and a float16 one was float32.
* A jitted function that calls `backward` passed gradients to what an argument was computed from when it was traced,
  and did not when it was replayed.
* The gradient of `median` of 12 elements: a peeled loop left one reduction outside of the output loops and another
  one, over the same loop, inside of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.kernel.kernels import axis, load, param, store
from tests.kernel.test_products import kernel
from tests.kernel.test_transforms import check
from tilewright import Tensor, dtypes, jit
from tilewright.base.errors import DTypeError
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.uop import UOp, index_const


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("values", [(0.0, 0.0, 0.0), (1.0, -1.0, 2.0)])
def test_values_that_sum_to_zero_have_gradients(values: tuple[float, ...], is_stored: bool) -> None:
    own, given = Tensor([1.0, 2.0]).requires_grad_(), Tensor(list(values)).requires_grad_()
    start = own if is_stored else own * 1
    (start.scatter_add(0, Tensor([0, 0, 1]), given) * Tensor([3.0, 5.0])).sum().backward()
    assert own.grad is not None
    assert given.grad is not None
    assert (own.grad.tolist(), given.grad.tolist()) == ([3.0, 5.0], [3.0, 3.0, 5.0])


def test_a_negative_zero_that_nothing_is_added_to_stays_one() -> None:
    assert math.copysign(1, Tensor([-0.0, 1.0]).scatter_add(0, Tensor([1]), Tensor([2.0])).tolist()[0]) == -1


def test_the_slopes_of_an_angle_on_the_axes_and_far_away() -> None:
    points = [(0.0, 4.0, 0.25, 0.0), (0.0, -4.0, -0.25, 0.0), (2.0, 0.0, 0.0, -0.5), (1e30, 0.0, 0.0, -1e-30)]
    points += [(0.0, 0.0, 0.0, 0.0), (math.inf, 1.0, 0.0, 0.0), (3.0, 4.0, 4 / 25, -3 / 25)]
    y, x, along_y, along_x = (np.array(each, np.float32) for each in zip(*points))
    upper, lower = Tensor(y).requires_grad_(), Tensor(x).requires_grad_()
    found = upper.atan2(lower).sum().gradient(upper, lower)
    np.testing.assert_allclose(found[0].numpy(), along_y, rtol=1e-6)
    np.testing.assert_allclose(found[1].numpy(), along_x, rtol=1e-6)


def test_the_slope_of_erfinv_at_its_ends() -> None:
    x = Tensor([0.0, 0.5, 1.0, -1.0, 2.0]).requires_grad_()
    (found,) = x.erfinv().sum().gradient(x)
    np.testing.assert_allclose(found.numpy(), [0.8862269, 1.1125849, np.inf, np.inf, np.nan], rtol=1e-6)


@pytest.mark.parametrize("name", ["uint8", "uint16", "uint32", "uint64"])
def test_negative_numbers_beside_unsigned_tensors(name: str) -> None:
    x = Tensor([2, 5], dtype=name)
    assert ((x / -1).tolist(), (-1 / x).tolist()) == ([-2.0, -5.0], pytest.approx([-0.5, -0.2]))
    assert (x.maximum(-1).tolist(), x.copysign(-1).tolist()) == ([2, 5], [-2.0, -5.0])
    with pytest.raises(DTypeError, match="cannot hold -1"):
        x.minimum(-1)


def test_an_integer_tensor_is_divided_by_any_number() -> None:
    assert (Tensor([30, 60], dtype="uint8") / 300).tolist() == pytest.approx([0.1, 0.2])


@pytest.mark.parametrize("name", ["hypot", "atan2", "copysign", "logaddexp"])
def test_an_integer_tensor_takes_the_float_dtype_of_another(name: str) -> None:
    assert getattr(Tensor([3]), name)(Tensor([4.0], dtype="float16")).dtype is dtypes.float16


@pytest.mark.parametrize("size", [12, 13])
def test_the_gradient_of_a_median(size: int) -> None:
    x = Tensor(np.arange(size, dtype=np.float32)).requires_grad_()
    (found,) = x.median(0)[0].gradient(x)
    assert found.tolist() == [float(k == (size - 1) // 2) for k in range(size)]


def test_a_reduction_that_peeling_leaves_outside_of_the_outputs_has_a_loop_of_its_own() -> None:
    """All but the last term of one sum are the same for every output; those of the other are not."""
    i, k = axis(3, 0), axis(6, 1, AxisType.REDUCE)
    is_last = k.eq(index_const(5))
    of_output = UOp(Ops.LOAD, dtypes.float32, (UOp(Ops.INDEX, dtypes.float32, (param(1, 3), i, is_last)),))
    mixed = load(param(2, 6), k) + of_output
    sums = [UOp(Ops.REDUCE, dtypes.float32, (value, k), Ops.ADD) for value in (mixed, load(param(3, 18), i * 6 + k))]
    check(kernel(store(param(0, 3), i, sums[0] + sums[1])), (), ("PYTHON", "CPU"))


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
@pytest.mark.parametrize("compute", [lambda p: p * 2, lambda p: (p * 2).realize(), lambda p: p[1:], lambda p: p])
def test_gradients_go_to_what_an_argument_was_computed_from(compute: Callable[[Tensor], Tensor]) -> None:
    call = jit(lambda x: (x * 3).sum().backward().realize())
    found = []
    for make in [lambda p: p] * 3 + [compute] * 4:
        parameter = Tensor([1.0, 2.0]).requires_grad_()
        call(make(parameter))
        assert parameter.grad is not None
        found.append(parameter.grad.tolist())
    again = Tensor([1.0, 2.0]).requires_grad_()
    (compute(again) * 3).sum().backward()
    assert again.grad is not None
    assert found == [[3.0, 3.0]] * 3 + [again.grad.tolist()] * 4
