"""The fast path of a replay: a generated function that compares with constants. Whatever is not as it was in the
recorded call is noticed, what a caller holds is not overwritten, and a plain call takes no other path."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import Context, Tensor, dtypes, jit
from tilewright.base.errors import IndexingError
from tilewright.base.events import subscribe


def filled(value: float, *shape: int) -> Tensor:
    return Tensor.full(shape or (4,), value).contiguous().realize()


INDEX, OTHER = Tensor([2, 0, -1]).realize(), Tensor([3, 1, 0]).realize()


def warm(function: Any, *args: Any) -> None:
    """Calls it until its fast path has been taken."""
    for _ in range(5):
        function(*args)
    assert function._fast_paths
    assert function.last_reason == ""


def slow_replays(function: Any) -> int:
    return sum(entry.ready.replays for entry in function.entries.values() if entry.ready is not None)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (lambda x: x + 1, (filled(1.0),)),
        (lambda x, y: x * y, (filled(1.0, 2, 3), filled(2.0, 3))),
        (lambda x, y: (x + y, x - y), (filled(1.0), filled(2.0))),
        (lambda x, n, s: [x + n], (filled(1.0), 3, "a")),
        (lambda x, f: x * f, (filled(1.0), 0.5)),
        (lambda: Tensor.ones(3) * 2, ()),
        # With range checks: of one index, of two in one kernel, of two kernels.
        (lambda x, i: x[i], (filled(1.0, 5, 3), INDEX)),
        (lambda x, i, y, j: x[i] + y[j], (filled(1.0), INDEX, filled(2.0, 7), OTHER)),
        (lambda x, i: (x[i], x.index_add(0, i, x[:3])), (filled(1.0, 5), INDEX)),
        # Views of an argument leave facts on its node.
        (lambda x, y: x @ y.transpose(0, 1), (filled(1.0, 1, 3), filled(2.0, 4, 3))),
        # Results that lie in the memory of an argument, or are one.
        (lambda x: x.permute(0, 1).contiguous(), (filled(1.0, 2, 3),)),
        (lambda x, y: (y.reshape(6), x + 1, x, y), (filled(1.0, 2, 3), filled(2.0, 2, 3))),
    ],
)
def test_a_plain_call_takes_it(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    jitted = jit(function)
    warm(jitted, *args)
    before = slow_replays(jitted)
    for _ in range(3):
        result, expected = jitted(*args), function(*args)
        assert type(result) is type(expected)
        for found, wanted in zip(
            result if isinstance(result, tuple | list) else [result],
            expected if isinstance(expected, tuple | list) else [expected],
            strict=True,
        ):
            np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    assert slow_replays(jitted) == before


def test_results_of_replays_are_arguments_of_the_next() -> None:
    step = jit(lambda x: x + 1)
    x = filled(0.0)
    for _ in range(12):
        x = step(x)
    assert x.tolist() == [12.0] * 4


def test_what_the_caller_holds_is_not_overwritten() -> None:
    step = jit(lambda x: x * 2)
    xs = [filled(float(n)) for n in range(10)]
    results = [step(x) for x in xs]
    views = [step(x)[1:3] for x in xs]  # the tensor itself is let go of, its memory is still read
    arrays = [step(x).numpy() for x in xs]
    for n in range(10):
        assert results[n].tolist() == [2.0 * n] * 4
        assert views[n].tolist() == [2.0 * n] * 2
        assert arrays[n].tolist() == [2.0 * n] * 4


OTHER_CALLS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "another shape": lambda: (filled(3.0, 5), filled(1.0, 5)),
    "a dtype": lambda: (filled(3.0).cast(dtypes.float16).realize(), filled(1.0)),
    "lazy": lambda: (filled(1.0) + 2, filled(1.0)),
    "a view": lambda: (filled(3.0, 2, 4)[1], filled(1.0)),
    "a transposed view": lambda: (filled(3.0, 4, 1).T[0], filled(1.0)),
    "one tensor twice": lambda: (filled(3.0),) * 2,
    "two tensors of one memory": lambda: (lambda x: (x, x.reshape(2, 2).reshape(4)))(filled(3.0)),
    "a number": lambda: (filled(3.0), 2.0),
    "no elements": lambda: (filled(3.0, 0), filled(1.0, 0)),
    "a gradient": lambda: (filled(3.0).requires_grad_(), filled(1.0)),
    "another device": lambda: (filled(3.0).to("PYTHON").realize(), filled(1.0).to("PYTHON").realize()),
}


@pytest.mark.parametrize("name", OTHER_CALLS)
def test_another_call_is_noticed(name: str) -> None:
    def function(x: Any, y: Any) -> Any:
        return x * 10 + y

    jitted = jit(function)
    known = (filled(1.0), filled(2.0))
    warm(jitted, *known)
    for _ in range(6):
        other = OTHER_CALLS[name]()
        result, expected = jitted(*other), function(*other)
        assert (result.dtype, result.shape, result.device) == (expected.dtype, expected.shape, expected.device)
        assert result.tolist() == expected.tolist()
        assert jitted(*known).tolist() == [12.0] * 4
        assert jitted.last_reason == ""


PLAIN_VALUES = [1, True, 1.0, np.float32(1), 0.0, -0.0, float("nan"), "1", None, 2**70, b"1", (1,)]


def test_plain_values_are_told_apart() -> None:
    def function(x: Tensor, value: Any) -> Tensor:
        return x + sum(map(ord, repr(value) + type(value).__name__))

    jitted = jit(function)
    x = filled(0.0)
    for _ in range(5):
        for value in PLAIN_VALUES[::2]:
            assert jitted(x, value).tolist() == function(x, value).tolist()
    for value in PLAIN_VALUES * 2:  # none is taken for another that is equal to it
        assert jitted(x, value).tolist() == function(x, value).tolist()


class _State:
    """What a function reads besides its arguments, and the ways to change it."""

    def __init__(self) -> None:
        self.weight = filled(2.0)
        self.scale = 3.0
        self.parts = [1.0, 1.0]
        self.table = {"a": 1.0}


def _exchange_weight(state: _State) -> None:
    state.weight = filled(5.0)


def _assign_weight(state: _State) -> None:
    state.weight.assign(filled(5.0))


def _assign_and_realize(state: _State) -> None:
    state.weight.assign(state.weight + 3).realize()


def _write_a_slice(state: _State) -> None:
    state.weight[0] = 7.0


def _change_scale(state: _State) -> None:
    state.scale = 4.0


def _change_parts(state: _State) -> None:
    state.parts[0] = 9.0


def _lengthen_parts(state: _State) -> None:
    state.parts.append(9.0)


def _change_table(state: _State) -> None:
    state.table["a"] = 8.0


def _add_to_table(state: _State) -> None:
    state.table["b"] = 8.0


def _exchange_class(state: _State) -> None:
    state.__class__ = type("Other", (_State,), {})


CHANGES = [
    _exchange_weight,
    _assign_weight,
    _assign_and_realize,
    _write_a_slice,
    _change_scale,
    _change_parts,
    _lengthen_parts,
    _change_table,
    _add_to_table,
    _exchange_class,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_changed_state_is_noticed(change: Callable[[_State], None]) -> None:
    state = _State()

    def function(x: Tensor) -> Tensor:
        more = sum(state.parts) + sum(state.table.values()) + len(type(state).__name__)
        return x * state.weight * state.scale + more

    jitted = jit(function)
    x = filled(1.0)
    for _ in range(2):  # also the second time: what was recorded again has a fast path too
        warm(jitted, x)
        change(state)
        assert jitted(x).tolist() == function(x).tolist()


def test_an_equal_value_is_taken_over() -> None:
    state = _State()
    jitted = jit(lambda x: x * state.scale)
    x = filled(1.0)
    warm(jitted, x)
    before = slow_replays(jitted)
    state.scale = float("3.0")  # another object of the same value
    for _ in range(4):
        assert jitted(x).tolist() == [3.0] * 4
    assert slow_replays(jitted) == before + 1
    assert jitted.last_reason == ""


def test_code_defaults_and_modes() -> None:
    def function(x: Tensor, y: float = 2.0) -> Tensor:
        return x * y + (10 if Tensor.training else 0)

    jitted = jit(function)
    x = filled(1.0)
    warm(jitted, x)
    with Tensor.train():
        assert [jitted(x).tolist()[0] for _ in range(4)] == [12.0] * 4
    assert jitted(x).tolist()[0] == 2.0
    function.__defaults__ = (3.0,)
    assert [jitted(x).tolist()[0] for _ in range(4)] == [3.0] * 4
    function.__code__ = (lambda x, y: x - y).__code__
    assert [jitted(x).tolist()[0] for _ in range(4)] == [-2.0] * 4


def test_default_dtype_and_device() -> None:
    jitted = jit(lambda x: x + Tensor.ones(4))
    x = filled(1.0).cast(dtypes.float16).realize()
    warm(jitted, x)
    default = dtypes.default_float
    try:
        dtypes.default_float = dtypes.float64
        assert jitted(x).dtype is dtypes.float64
    finally:
        dtypes.default_float = default
    assert jitted(x).dtype is dtypes.float32
    calls: list[int] = []
    eager = jit(lambda x: (calls.append(1), x + 1)[1])
    with Context(JIT=0):
        for _ in range(6):
            eager(x)
    assert len(calls) == 6


def test_gradients_of_arguments() -> None:
    """A call that reads gradients is told apart from one whose arguments have none."""

    def function(x: Tensor) -> Tensor:
        return x * 2 if x.grad is None else x * 3

    jitted = jit(function)
    x = filled(1.0).requires_grad_()
    for _ in range(6):
        assert jitted(x).tolist() == [2.0] * 4
    x.grad = filled(1.0)
    for _ in range(6):
        assert jitted(x).tolist() == [3.0] * 4


def test_an_argument_that_the_function_also_reads() -> None:
    state = _State()
    jitted = jit(lambda x: x + state.weight)
    warm(jitted, filled(1.0))
    for _ in range(4):
        assert jitted(state.weight).tolist() == [4.0] * 4
        assert jitted(state.weight.reshape(2, 2).reshape(4)).tolist() == [4.0] * 4
        assert jitted(filled(1.0)).tolist() == [3.0] * 4


def test_inside_another_jitted_function() -> None:
    inner = jit(lambda x: x + 1)
    x = filled(1.0)
    warm(inner, x)
    outer = jit(lambda x: inner(x) * 2)
    for n in range(8):
        assert outer(filled(float(n))).tolist() == [2.0 * (n + 1)] * 4
    assert outer.last_reason == ""


def test_watchers_see_each_replay() -> None:
    jitted = jit(lambda x: x + 1)
    x = filled(1.0)
    warm(jitted, x)
    seen: list[Any] = []
    with subscribe(seen.append, ["replay"]):
        for _ in range(3):
            jitted(x)
    assert len(seen) == 3
    assert jitted(x).tolist() == [2.0] * 4


def test_calls_of_several_shapes_by_turns() -> None:
    jitted = jit(lambda x: x + 1)
    xs = [filled(float(n), n + 1) for n in range(3)]
    for _ in range(5):
        for x in xs:
            jitted(x)
    before = slow_replays(jitted)
    for _ in range(4):
        for n, x in enumerate(xs):
            assert jitted(x).tolist() == [n + 1.0] * (n + 1)
    assert slow_replays(jitted) == before


def test_reset_and_reasons() -> None:
    jitted = jit(lambda x: x + 1)
    x = filled(1.0)
    warm(jitted, x)
    jitted(filled(1.0, 7))
    assert jitted.last_reason
    jitted(x)
    assert jitted.last_reason == ""
    jitted.reset()
    jitted(x)
    assert jitted.last_reason


def test_methods_and_keywords() -> None:
    class Model:
        def __init__(self, factor: float) -> None:
            self.weight = filled(factor)

        @jit
        def __call__(self, x: Tensor, *, shift: float = 0.0) -> Tensor:
            return x * self.weight + shift

    one, two = Model(2.0), Model(3.0)
    x = filled(1.0)
    for _ in range(6):
        assert one(x).tolist() == [2.0] * 4
        assert two(x).tolist() == [3.0] * 4
        assert one(x, shift=1.0).tolist() == [3.0] * 4
    one.weight = filled(5.0)
    assert one(x).tolist() == [5.0] * 4


def test_the_random_state_is_guarded_where_it_is_used() -> None:
    Tensor.manual_seed(1)
    Tensor.rand(3).realize()
    plain = jit(lambda x: x + 1)
    noisy = jit(lambda x: x + Tensor.rand(4))
    x = filled(1.0)
    found = [tuple(noisy(x).tolist()) for _ in range(8)]
    assert len(set(found)) == 8
    for seed in range(6):
        Tensor.manual_seed(seed)
        again = [tuple(noisy(x).tolist()) for _ in range(3)]
        Tensor.manual_seed(seed)
        assert again == [tuple((x + Tensor.rand(4)).tolist()) for _ in range(3)]
        assert plain(x).tolist() == [2.0] * 4
    assert plain.last_reason == ""
    assert not next(iter(plain.entries.values())).ready.guards.tensors


def test_threads() -> None:
    jitted = jit(lambda x: x + 1)
    warm(jitted, filled(0.0))
    wrong: list[Any] = []

    def work(number: int) -> None:
        x = filled(float(number))
        for _ in range(200):
            if (found := jitted(x).tolist()) != [number + 1.0] * 4:
                wrong.append((number, found))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_call_that_fails_leaves_it_usable() -> None:
    jitted = jit(lambda x: x + 1)
    x = filled(1.0)
    warm(jitted, x)
    (ready,) = [entry.ready for entry in jitted.entries.values()]
    assert ready is not None
    assert ready.replay.reading is None
    with pytest.raises(TypeError):
        jitted(x, x)
    assert jitted(x).tolist() == [2.0] * 4
    assert ready.replay.reading is None


def test_results_in_the_memory_of_an_argument_keep_their_values() -> None:
    view = jit(lambda x: (x.reshape(4).contiguous(), x.reshape(2, 2), x + 0, x))
    x = filled(1.0)
    warm(view, x)
    before = slow_replays(view)
    alike, square, copied, same = view(x)
    assert same is x
    built = alike * 2
    x += 1  # in place
    assert x.tolist() == [2.0] * 4
    assert alike.tolist() == copied.tolist() == [1.0] * 4
    assert square.tolist() == [[1.0, 1.0]] * 2
    assert built.tolist() == [2.0] * 4
    assert view(x)[0].tolist() == view(x)[1].flatten().tolist() == [2.0] * 4
    assert view(view(x)[0])[1].tolist() == [[2.0, 2.0]] * 2
    doubled = jit(lambda y: y.assign(y * 2))
    alike = view(x)[0]
    for _ in range(6):
        doubled(x)
    assert alike.tolist() == [2.0] * 4
    assert x.tolist() == [128.0] * 4
    assert slow_replays(view) >= before


def test_an_index_out_of_range_is_reported_at_its_line() -> None:
    jitted = jit(lambda x, i, j: x[i] + x[j])
    x, bad = filled(1.0), Tensor([0, 9, 0]).realize()
    warm(jitted, x, INDEX, OTHER)
    before = slow_replays(jitted)
    for number, indices in enumerate(((INDEX, bad), (bad, INDEX)) * 2):
        with pytest.raises(IndexingError, match=r"index 9 is out of range for axis 0 of shape \(4,\)") as found:
            jitted(x, *indices)
        assert found.value.location is not None
        assert found.value.location[0] == __file__, number
        assert jitted(x, INDEX, OTHER).tolist() == [2.0] * 3
    assert slow_replays(jitted) == before


# ---------------------------------------------------------------- steps that overwrite memory


@pytest.fixture(params=[False, True], ids=["alone", "other threads"])
def threads_about(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether other threads run, as jit sees it: the library of some device may have one."""
    monkeypatch.setattr("tilewright.engine.jit.jit.has_other_threads", lambda: request.param)


@pytest.mark.usefixtures("threads_about")
def test_a_step_keeps_the_nodes_of_what_nobody_else_reads() -> None:
    weight, x = filled(0.0, 2, 2), filled(1.0, 2, 2)

    @jit
    def step(x: Tensor) -> Tensor:
        weight.assign(weight + x)
        return weight

    for _ in range(4):
        step(x)
    node = id(weight.uop)
    step(x)
    assert id(weight.uop) == node  # nothing was computed from it, so it may stand for the new contents
    assert weight.tolist() == [[5.0, 5.0]] * 2


@pytest.mark.filterwarnings("ignore::tilewright.base.warning.JitWarning")  # a step that others read is traced
@pytest.mark.usefixtures("threads_about")
def test_what_was_built_before_a_step_keeps_the_old_contents() -> None:
    weight, x = filled(0.0), filled(1.0)

    @jit
    def step(x: Tensor) -> None:
        weight.assign(weight + x)

    built: list[Tensor] = []
    held: list[Any] = []
    expected: list[float] = []
    for n in range(12):
        step(x)
        if n % 2:
            built += [weight * 2, weight[1:3], weight.reshape(2, 2)]
            held += [weight.numpy(), weight.detach()]
            expected.append(n + 1.0)
    for number, value in enumerate(expected):
        assert built[3 * number].tolist() == [2 * value] * 4
        assert built[3 * number + 1].tolist() == [value] * 2
        assert built[3 * number + 2].tolist() == [[value] * 2] * 2
        assert held[2 * number].tolist() == [value] * 4
        assert held[2 * number + 1].tolist() == [value] * 4


@pytest.mark.usefixtures("threads_about")
def test_equal_expressions_before_and_after_a_step() -> None:
    """A value that was computed from the old contents, and is gone, does not come back for the new ones."""
    weight, x = filled(0.0), filled(1.0)

    @jit
    def step(x: Tensor) -> None:
        weight.assign(weight + x)

    for n in range(8):
        step(x)
        assert (weight * 2 + 1).realize().tolist() == [2 * (n + 1) + 1.0] * 4
        kept = (weight * 3).realize()
    assert kept.tolist() == [24.0] * 4
    step(x)
    assert (weight * 3).tolist() == [27.0] * 4
    assert kept.tolist() == [24.0] * 4


@pytest.mark.usefixtures("threads_about")
def test_facts_of_the_old_contents_are_forgotten() -> None:
    """The limits of an index that the host has given are not those of what a step makes of it."""
    table, index = Tensor.arange(4).contiguous().realize(), Tensor([0, 1])

    @jit
    def step(by: Tensor) -> None:
        index.assign(index + by)

    by = Tensor([1, 1]).realize()
    for n in range(2):
        assert table[index].tolist() == [n, n + 1]
        step(by)
    step(by)
    with pytest.raises(IndexError):
        table[index].tolist()


@pytest.mark.usefixtures("threads_about")
def test_a_gradient_through_what_a_step_has_overwritten() -> None:
    weight, x = filled(1.0).requires_grad_(), filled(2.0)

    @jit
    def step(x: Tensor) -> Tensor:
        loss = (weight * weight * x).sum()
        (slope,) = loss.gradient(weight)
        weight.assign((weight - slope * 0.1).detach())
        return loss

    value = 1.0
    for _ in range(7):
        assert step(x).item() == pytest.approx(4 * value * value * 2, rel=1e-5)
        value -= 0.1 * 2 * value * 2
        loss = (weight * weight).sum()
        (slope,) = loss.gradient(weight)
        np.testing.assert_allclose(slope.numpy(), [2 * value] * 4, rtol=1e-5)


@pytest.mark.usefixtures("threads_about")
def test_a_swap_of_two_states() -> None:
    one, two = filled(1.0), filled(2.0)

    @jit
    def swap() -> None:
        first, second = one + 0, two + 0
        one.assign(second)
        two.assign(first)

    for n in range(7):
        swap()
        assert (one.tolist()[0], two.tolist()[0]) == ((2.0, 1.0) if n % 2 == 0 else (1.0, 2.0))


@pytest.mark.filterwarnings("ignore:jit. step is traced at every call")  # where the reader is there at each of them
def test_threads_read_what_a_step_overwrites() -> None:
    """With another thread about, a reader has the contents from before a step or from after it."""
    weight, x = filled(0.0, 64), filled(1.0, 64)

    @jit
    def step(x: Tensor) -> None:
        weight.assign(weight + x)

    for _ in range(4):
        step(x)
    mixed: list[Any] = []
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            lazy = weight + 0
            before = weight.numpy()
            found = lazy.numpy()
            if len(set(found.tolist())) != 1 or found[0] > before[0]:
                mixed.append((before[0], found))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(200):
            step(x)
    finally:
        is_over.set()  # a thread that is left running would fail the tests after this one, which count kernels
        reader.join()
    assert not mixed
    assert weight.tolist() == [204.0] * 64
