"""jit replays what it recorded, and never answers from stale state: each test changes one thing between calls."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest

from tilewright import GlobalCounters, Tensor, jit
from tilewright.base.errors import RealizeError

DEVICES = ["CPU", "PYTHON"]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_third_call_replays_with_equal_results(device: str) -> None:
    calls = []

    @jit
    def f(x: Tensor) -> Tensor:
        calls.append(1)
        return (x * 2 + 1).sum(0).realize()

    for step in range(5):
        x = Tensor([[1.0, 2.0], [3.0, float(step)]], device=device)
        assert f(x).tolist() == [10.0, 2 * (2.0 + step) + 2]
    assert len(calls) == 2
    assert f.last_reason == ""


def test_another_shape_or_dtype_is_traced(device: str) -> None:
    f = jit(lambda x: (x + 1).realize())
    for _ in range(3):
        assert f(Tensor([1.0, 2.0], device=device)).tolist() == [2.0, 3.0]
    assert f(Tensor([1.0, 2.0, 3.0], device=device)).tolist() == [2.0, 3.0, 4.0]
    assert f(Tensor([1, 2], device=device)).tolist() == [2, 3]
    assert f(Tensor([5.0, 6.0], device=device)).tolist() == [6.0, 7.0]


def test_result_held_by_the_caller_is_not_overwritten(device: str) -> None:
    f = jit(lambda x: (x + 1).realize())
    held = [f(Tensor([float(step)], device=device)) for step in range(6)]
    assert [t.tolist() for t in held] == [[step + 1.0] for step in range(6)]


def test_output_fed_back_as_input(device: str) -> None:
    f = jit(lambda x: (x * 2).realize())
    x = Tensor([1.0, 3.0], device=device)
    for _ in range(6):
        x = f(x)
    assert x.tolist() == [64.0, 192.0]


def test_python_constant_in_closure_changes(device: str) -> None:
    scale = 2.0

    def plain(x: Tensor) -> Tensor:
        return (x * scale).realize()

    f = jit(plain)
    x = Tensor([1.0, 2.0], device=device)
    for _ in range(3):
        assert f(x).tolist() == [2.0, 4.0]
    scale = 5.0
    assert f(x).tolist() == [5.0, 10.0]
    assert "changed" in f.last_reason or "traced" in f.last_reason


class Holder:
    def __init__(self, device: str) -> None:
        self.rate = 2.0
        self.nested = {"list": [1.0, 2.0]}
        self.weight = Tensor([1.0, 1.0], device=device).realize()

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.rate + self.weight + self.nested["list"][0]).realize()

    @jit
    def method(self, x: Tensor) -> Tensor:
        return (x * self.rate + self.weight).realize()


def test_attribute_of_a_bound_object_changes(device: str) -> None:
    holder = Holder(device)
    f = jit(holder.forward)
    x = Tensor([1.0, 2.0], device=device)
    for _ in range(4):
        assert f(x).tolist() == [4.0, 6.0]
    holder.rate = 3.0
    assert f(x).tolist() == [5.0, 8.0]
    holder.nested["list"][0] = 10.0
    assert f(x).tolist() == [14.0, 17.0]
    holder.weight = Tensor([100.0, 100.0], device=device)
    assert f(x).tolist() == [113.0, 116.0]


def test_jitted_method_keeps_instances_apart(device: str) -> None:
    one, two = Holder(device), Holder(device)
    two.rate = 10.0
    x = Tensor([1.0, 2.0], device=device)
    for _ in range(4):
        assert one.method(x).tolist() == [3.0, 5.0]
        assert two.method(x).tolist() == [11.0, 21.0]


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
def test_value_that_changes_by_itself_is_traced_every_time(device: str) -> None:
    counter = iter(range(100))

    @jit
    def f(x: Tensor) -> Tensor:
        return (x + float(next(counter))).realize()

    x = Tensor([0.0], device=device)
    assert [f(x).tolist()[0] for _ in range(8)] == [float(n) for n in range(8)]


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
def test_host_data_made_inside_is_never_stale(device: str) -> None:
    data = [1.0]

    @jit
    def f(x: Tensor) -> Tensor:
        return (x + Tensor(data, device=device)).realize()

    x = Tensor([0.0], device=device)
    seen = []
    for step in range(5):
        data[0] = float(step)
        seen.append(f(x).tolist()[0])
    assert seen == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert f.last_reason != ""


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
def test_branch_on_a_value_is_traced(device: str) -> None:
    @jit
    def f(x: Tensor) -> Tensor:
        return (x + 1 if x.sum().item() > 0 else x - 1).realize()

    for value in (1.0, 2.0, -1.0, 3.0, -5.0):
        assert f(Tensor([value], device=device)).tolist() == [value + 1 if value > 0 else value - 1]


def test_assign_to_state_is_replayed(device: str) -> None:
    total = Tensor([0.0, 0.0], device=device).realize()

    @jit
    def f(x: Tensor) -> Tensor:
        total.assign(total + x)
        return (total * 2).realize()

    for step in range(1, 7):
        assert f(Tensor([1.0, 2.0], device=device)).tolist() == [2.0 * step, 4.0 * step]
        assert total.tolist() == [1.0 * step, 2.0 * step]
    assert f.last_reason == ""


def test_assign_left_pending_is_done(device: str) -> None:
    total = Tensor([0.0], device=device).realize()

    @jit
    def f(x: Tensor) -> Tensor:
        total.assign(total + x)
        return (x + 1).realize()

    for step in range(1, 6):
        assert f(Tensor([2.0], device=device)).tolist() == [3.0]
        assert total.tolist() == [2.0 * step]


def test_expression_built_before_a_replay_keeps_its_value(device: str) -> None:
    weight = Tensor([1.0], device=device).realize()

    @jit
    def step(x: Tensor) -> Tensor:
        weight.assign(weight + x)
        return weight.sum().realize()

    x = Tensor([1.0], device=device)
    for _ in range(3):
        step(x)
    before = weight * 10  # lazy: means 4 * 10
    alias = weight.reshape(1, 1)
    step(x)
    assert before.tolist() == [40.0]
    assert alias.tolist() == [[4.0]]
    assert weight.tolist() == [5.0]


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
def test_expression_of_new_contents_is_not_the_old_one(device: str) -> None:
    weight = Tensor([1.0], device=device, requires_grad=True).realize()

    @jit
    def step(x: Tensor) -> Tensor:
        with Tensor.no_grad():
            weight.assign(weight.detach() + x)
        return (x * 1).realize()

    x = Tensor([1.0], device=device)
    for count in range(5):
        doubled = (weight * 2).realize()
        assert doubled.tolist() == [2.0 * (count + 1)]
        step(x)


def test_aliasing_arguments(device: str) -> None:
    f = jit(lambda a, b: (a * 2 + b).realize())
    x, y = Tensor([1.0], device=device).realize(), Tensor([10.0], device=device).realize()
    for _ in range(3):
        assert f(x, x).tolist() == [3.0]
    for _ in range(3):
        assert f(x, y).tolist() == [12.0]
    assert f(y, y).tolist() == [30.0]


def test_view_as_argument(device: str) -> None:
    f = jit(lambda a: (a + 1).realize())
    base = Tensor([[1.0, 2.0], [3.0, 4.0]], device=device).realize()
    for _ in range(3):
        assert f(base.T).tolist() == [[2.0, 4.0], [3.0, 5.0]]
        assert f(base[1:]).tolist() == [[4.0, 5.0]]
    assert base.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_argument_that_is_also_state(device: str) -> None:
    weight = Tensor([1.0], device=device).realize()
    f = jit(lambda x: (x + weight).realize())
    other = Tensor([7.0], device=device).realize()
    for _ in range(3):
        assert f(weight).tolist() == [2.0]
        assert f(other).tolist() == [8.0]


def test_tensor_that_escapes_is_refused_not_stale(device: str) -> None:
    kept: list[tuple[Tensor, int]] = []

    @jit
    def f(x: Tensor) -> Tensor:
        kept.clear()
        kept.append(((x * 100).realize(), 1))
        return (x + 1).realize()

    for _ in range(2):
        f(Tensor([1.0], device=device))
    escaped = kept[0][0]
    assert escaped.tolist() == [100.0]
    f(Tensor([2.0], device=device))
    assert f.last_reason == ""
    with pytest.raises(RealizeError, match="jitted"):
        escaped.tolist()


def test_nested_results_and_arguments(device: str) -> None:
    f = jit(lambda pair, *, flag: {"sum": (pair[0] + pair[1]).realize(), "flag": flag, "both": [pair[0] * 2]})
    for step in range(4):
        x, y = Tensor([1.0 + step], device=device), Tensor([2.0], device=device)
        result = f((x, y), flag=step % 2 == 0)
        assert result["sum"].tolist() == [3.0 + step]
        assert result["flag"] is (step % 2 == 0)
        assert result["both"][0].tolist() == [2.0 + 2 * step]


RANDOM: dict[str, Callable[[Tensor], Tensor]] = {
    "rand": lambda x: x + Tensor.rand(8, device=x.device),
    "randn": lambda x: x + Tensor.randn(8, device=x.device),
    "normal": lambda x: Tensor.normal(8, mean=1.0, std=2.0, device=x.device) - x,
    "uniform": lambda x: Tensor.uniform(8, low=-1.0, high=1.0, device=x.device) * (x + 1),
    "randint": lambda x: x + Tensor.randint(8, low=0, high=1000, device=x.device),
    "rand_like": lambda x: x.rand_like() + x.randn_like(),
    "randperm": lambda x: x + Tensor.randperm(8, device=x.device),
    "multinomial": lambda x: (x + 1).multinomial(8, replacement=True),
    "dropout": lambda x: (x + 1).dropout(0.5),
    "kaiming_uniform": lambda x: x + Tensor.kaiming_uniform(8, 3, device=x.device).sum(1),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_of_a_replay_are_those_of_tracing(device: str, name: str) -> None:
    """New ones in each call, and the ones that the function draws without jit."""
    function = RANDOM[name]
    f = jit(lambda x: function(x).realize())
    x = Tensor([0.0] * 8, device=device).realize()
    with Tensor.train():
        Tensor.manual_seed(7)
        expected = [tuple(function(x).tolist()) for _ in range(6)]
        Tensor.manual_seed(7)
        seen = []
        for number in range(6):
            seen.append(tuple(f(x).tolist()))
            assert number < 2 or f.last_reason == ""
    assert seen == expected
    assert len(set(seen)) > 4


def test_training_flag_is_part_of_the_signature(device: str) -> None:
    f = jit(lambda x: (x * (2.0 if Tensor.training else 3.0)).realize())
    x = Tensor([1.0], device=device)
    for _ in range(3):
        assert f(x).tolist() == [3.0]
        with Tensor.train():
            assert f(x).tolist() == [2.0]


def test_inner_jit_is_traced_with_the_outer(device: str) -> None:
    inner = jit(lambda x: (x + 1).realize())
    outer = jit(lambda x: inner(x * 2).realize())
    for step in range(5):
        assert outer(Tensor([float(step)], device=device)).tolist() == [2.0 * step + 1]


def test_exception_inside_leaves_jit_usable(device: str) -> None:
    armed = [True]

    @jit
    def f(x: Tensor) -> Tensor:
        if armed[0]:
            raise ValueError("stop")
        return (x + 1).realize()

    with pytest.raises(ValueError, match="stop"):
        f(Tensor([1.0], device=device))
    armed[0] = False
    for _ in range(4):
        assert f(Tensor([1.0], device=device)).tolist() == [2.0]


def test_threads_share_a_jitted_function() -> None:
    f = jit(lambda x: (x * 3).sum().realize())
    wrong: list[float] = []

    def work(base: int) -> None:
        for step in range(50):
            value = float(base * 1000 + step)
            if f(Tensor([value, value])).item() != 6 * value:
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_replay_does_not_keep_results_alive() -> None:
    f = jit(lambda x: (x + 1).realize())
    x = Tensor([0.0] * 1_000_000).realize()
    for _ in range(3):
        f(x)
    gc.collect()
    before = GlobalCounters.mem_used
    for _ in range(5):
        f(x)
    gc.collect()
    assert GlobalCounters.mem_used <= before


def test_jit_option_off_runs_plainly() -> None:
    from tilewright import Context

    calls = []

    @jit
    def f(x: Tensor) -> Tensor:
        calls.append(1)
        return (x + 1).realize()

    with Context(JIT=0):
        for _ in range(4):
            assert f(Tensor([1.0])).tolist() == [2.0]
    assert len(calls) == 4


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
def test_tensors_without_elements(device: str) -> None:
    f = jit(lambda x: x[1:1] * 2)
    g = jit(lambda x: (x + 1).sum().realize())
    for _ in range(4):
        assert f(Tensor([1.0, 2.0], device=device)).shape == (0,)
        assert g(Tensor.empty(0, 3, device=device)).item() == 0.0


# ---------------------------------------------------------------- arguments that the function also reaches by itself


def test_an_argument_that_the_closure_holds_is_replayed(device: str) -> None:
    x, y = Tensor([1.0, 2.0], device=device).realize(), Tensor([10.0, 20.0], device=device).realize()
    f = jit(lambda a: (a * 2 + x).realize())
    for _ in range(5):
        assert f(x).tolist() == [3.0, 6.0]
    assert f.last_reason == ""
    reasons = []
    for _ in range(4):  # the others have a record of their own, and both are kept
        assert f(y).tolist() == [21.0, 42.0]
        reasons.append(f.last_reason)
        assert f(x).tolist() == [3.0, 6.0]
        assert f.last_reason == ""
    assert [bool(reason) for reason in reasons] == [True, True, False, False]


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")
def test_a_second_tensor_of_the_closure_as_argument_is_not_taken_for_the_first(device: str) -> None:
    x, y = (Tensor(values, device=device).realize() for values in ([1.0, 2.0], [10.0, 20.0]))
    f = jit(lambda a: (a * 100 + x * 10 + y).realize())
    for _ in range(4):
        assert f(x).tolist() == [120.0, 240.0]
    for _ in range(4):
        assert f(y).tolist() == [1020.0, 2040.0]
        assert f(x).tolist() == [120.0, 240.0]


@pytest.mark.parametrize("order", ["yyyyxxxx", "xxxxyyyy", "yxyxyxyxyx"])
def test_state_that_is_overwritten_is_also_the_argument(order: str, device: str) -> None:
    def run(wrap: Callable[..., Callable[[Tensor], Tensor]]) -> list[list[list[float]]]:
        x = Tensor([[1.0, 2.0], [3.0, 4.0]], device=device).realize()
        y = Tensor([[0.5, 0.25], [8.0, 16.0]], device=device).realize()

        def f(a: Tensor) -> Tensor:
            x.assign(a.T * 0.5 + x[::-1])
            return (x + 1).realize()

        step = wrap(f)
        given = {"x": x, "y": y}
        return [step(given[name]).tolist() for name in order] + [x.tolist(), y.tolist()]

    assert run(jit) == run(lambda f: f)
