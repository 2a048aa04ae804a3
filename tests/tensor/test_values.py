"""Laziness is not observable: programs mean what they would mean if every line ran at once."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

from tilewright import GlobalCounters
from tilewright.tensor.tensor import Tensor


@pytest.fixture(params=[False, True], ids=["lazy", "realised"])
def realised(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def make(values: Any, device: str, realised: bool) -> Tensor:
    """A tensor that is a buffer, or one that is still an expression."""
    tensor = Tensor(values, device=device)
    return tensor if realised else tensor * 1


def test_an_expression_keeps_the_value_from_before(run: Any, device: str, realised: bool) -> None:
    tensor = make([1.0, 2.0, 3.0], device, realised)
    before = tensor + 10
    tensor.assign(Tensor([7.0, 8.0, 9.0], device=device))
    after = tensor + 10
    np.testing.assert_array_equal(run(after), [17, 18, 19])
    np.testing.assert_array_equal(run(before), [11, 12, 13])
    np.testing.assert_array_equal(run(tensor), [7, 8, 9])


def test_realising_in_any_order(device: str) -> None:
    tensor = Tensor([1.0, 2.0], device=device)
    before = tensor * 2
    tensor += 1
    tensor.realize()
    between = tensor * 2
    tensor += 1
    assert tensor.tolist() == [3, 4]
    assert before.tolist() == [2, 4]
    assert between.tolist() == [4, 6]


def test_assignment_of_a_function_of_itself(run: Any, device: str, realised: bool) -> None:
    tensor = make([1.0, 2.0, 3.0, 4.0], device, realised)
    tensor.assign(tensor.flip(0) * 2)
    np.testing.assert_array_equal(run(tensor), [8, 6, 4, 2])


def test_overlapping_slices(run: Any, device: str, realised: bool) -> None:
    tensor = make(np.arange(6, dtype=np.float32), device, realised)
    tensor[1:] = tensor[:-1]
    np.testing.assert_array_equal(run(tensor), [0, 0, 1, 2, 3, 4])
    tensor[:-2] = tensor[2:]
    np.testing.assert_array_equal(run(tensor), [1, 2, 3, 4, 3, 4])


def test_swap(run: Any, device: str, realised: bool) -> None:
    first, second = make([1.0, 2.0], device, realised), make([3.0, 4.0], device, realised)
    old = first + 0
    first.assign(second)
    second.assign(old)
    np.testing.assert_array_equal(run(first), [3, 4])
    np.testing.assert_array_equal(run(second), [1, 2])


def test_a_view_writes_to_its_base(run: Any, device: str, realised: bool) -> None:
    tensor = make(np.arange(12, dtype=np.float32).reshape(3, 4), device, realised)
    expected = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor[1:, ::2].assign(Tensor([[-1.0, -2.0], [-3.0, -4.0]], device=device))
    expected[1:, ::2] = [[-1, -2], [-3, -4]]
    tensor.T[0] += 100
    expected.T[0] += 100
    tensor.flip(0)[0][1:3].reshape(2, 1).assign(Tensor([[5.0], [6.0]], device=device))
    expected[::-1][0][1:3] = [5, 6]
    np.testing.assert_array_equal(run(tensor), expected)


def test_a_written_view_has_the_new_values(run: Any, device: str, realised: bool) -> None:
    tensor = make([1.0, 2.0, 3.0, 4.0], device, realised)
    view = tensor[1:]
    inner = view[1:]
    inner += 10
    np.testing.assert_array_equal(run(inner), [13, 14])
    np.testing.assert_array_equal(run(view), [2, 13, 14])
    np.testing.assert_array_equal(run(tensor), [1, 2, 13, 14])


def test_a_view_of_a_tensor_that_is_gone(run: Any, device: str) -> None:
    view = Tensor([1.0, 2.0, 3.0], device=device)[1:]
    gc.collect()
    view += 1
    np.testing.assert_array_equal(run(view), [3, 4])


def test_equal_tensors_stay_two(device: str) -> None:
    source = Tensor([1.0, 2.0], device=device)
    first, second = source + 1, source + 1
    first.realize(second)
    first.assign(Tensor([0.0, 0.0], device=device)).realize()
    assert second.tolist() == [2, 3]
    clone = source.clone()
    source += 5
    assert clone.realize().tolist() == [1, 2]
    assert source.tolist() == [6, 7]


def test_many_updates(device: str) -> None:
    tensor = Tensor([0.0, 0.0], device=device)
    for step in range(20):
        tensor += step
        if step % 7 == 0:
            tensor.realize()
    assert tensor.tolist() == [190, 190]


def test_in_place_operators_keep_dtype(device: str) -> None:
    tensor = Tensor([1.0, 2.0], dtype="float16", device=device)
    tensor += Tensor([0.5, 0.5], device=device)
    tensor *= 2
    tensor -= 1
    tensor /= 2
    tensor **= 2
    assert tensor.dtype.name == "float16"
    assert tensor.tolist() == [1.0, 4.0]
    whole = Tensor([6, 7], device=device)
    whole //= 2
    whole <<= 3
    whole |= 1
    whole ^= 2
    whole &= 0xFF
    whole >>= 1
    whole %= 10
    assert whole.tolist() == [3, 3]


def test_assign_broadcasts(run: Any, device: str, realised: bool) -> None:
    tensor = make(np.zeros((2, 3), np.float32), device, realised)
    tensor.assign(Tensor([1.0, 2.0, 3.0], device=device))
    np.testing.assert_array_equal(run(tensor), [[1, 2, 3], [1, 2, 3]])
    tensor.assign(7)
    np.testing.assert_array_equal(run(tensor), np.full((2, 3), 7))


def test_parameters_of_equal_value_are_two() -> None:
    first, second = Tensor.zeros(3, requires_grad=True), Tensor.zeros(3, requires_grad=True)
    assert first.uop is not second.uop
    assert (first + second).requires_grad
    assert not (first < second).requires_grad
    with Tensor.no_grad():
        assert not (first + second).requires_grad
    assert not first.detach().requires_grad


def test_modes_belong_to_a_thread() -> None:
    seen = []
    with Tensor.train():
        assert Tensor.training
        thread = threading.Thread(target=lambda: seen.append(Tensor.training))
        thread.start()
        thread.join()
        with Tensor.train(False):
            assert not Tensor.training
    assert seen == [False]
    assert not Tensor.training

    @Tensor.train()
    def inside() -> bool:
        return Tensor.training

    assert inside()
    assert not Tensor.training


def test_threads_build_and_read_at_once() -> None:
    failures: list[Any] = []

    def work(number: int) -> None:
        for step in range(5):
            found = (Tensor([number, step]) * 2 + 1).sum().item()
            if found != 2 * (number + step) + 2:
                failures.append((number, step, found))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_one_element_of_a_view_is_read_without_a_kernel() -> None:
    values = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
    tensor = Tensor(values).realize()
    padded = tensor.reshape(20, 6).pad(((1, 0), (0, 0)))
    before = GlobalCounters.kernel_count
    for index in np.ndindex(values.shape):
        assert tensor[index].item() == values[index]
    assert tensor.permute(2, 0, 1)[3, 1, 2].item() == values[1, 2, 3]
    assert tensor.flip(1)[0, 0, 0].item() == values[0, 4, 0]
    assert tensor[::2, 1:][1, 1, 1].item() == values[2, 2, 1]
    assert tensor[:1].expand(3, 5, 6)[2, 1, 1].item() == values[0, 1, 1]
    assert padded[3, 2].item() == values.reshape(20, 6)[2, 2]
    assert GlobalCounters.kernel_count == before
    assert padded[0, 2].item() == 0
    tensor[1, 2, 3] = 7.0
    assert tensor[1, 2, 3].item() == 7
