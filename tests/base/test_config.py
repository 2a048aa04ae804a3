"""Options: what they are read from, what may be set, for how long and in which thread."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import timeit
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.base import config
from tilewright.base.config import DECLARATIONS, Context, Options, options, overrides, set_option
from tilewright.base.errors import ConfigError
from tilewright.base.option import Value

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def process_values() -> Iterator[None]:
    """Give each test the defaults, whatever the environment of the run is, and put back what was there."""
    before = {name: getattr(options, name) for name in DECLARATIONS}
    for name, declaration in DECLARATIONS.items():
        set_option(name, declaration.default)
    yield
    for name, value in before.items():
        set_option(name, value)


def read_in_thread(name: str, context: Context | None = None) -> Value:
    """What another thread reads, inside `context` where one is given."""
    seen: list[Value] = []

    def read() -> None:
        if context is None:
            seen.append(getattr(options, name))
        else:
            with context:
                seen.append(getattr(options, name))

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    return seen[0]


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("CACHE", 1),
        ("CPU_COMPILER", "llvm"),
        ("DEBUG", 0),
        ("DEVICE", ""),
        ("FUSE", 1),
        ("JIT", 1),
        ("NOOPT", 0),
        ("PASS_LIMIT", -1),
        ("REWRITE_LIMIT", -1),
        ("SEED", 0),
        ("SPLIT_REDUCE", 1),
        ("TILEWRIGHT_CACHE_DIR", ""),
        ("TILEWRIGHT_THREADS", 0),
        ("VERIFY", 0),
        ("SHOW_PASS", ""),
        ("VERIFY_GRAPH", 0),
    ],
)
def test_defaults(name: str, default: Value) -> None:
    assert getattr(options, name) == default


@pytest.mark.parametrize(
    ("variables", "name", "value"),
    [
        ({"DEBUG": "3"}, "DEBUG", 3),
        ({"DEBUG": ""}, "DEBUG", 0),
        ({"DEBUG": " 2 "}, "DEBUG", 2),
        ({"REWRITE_LIMIT": "-1"}, "REWRITE_LIMIT", -1),
        ({"DEVICE": "CPU:1"}, "DEVICE", "CPU:1"),
        ({"CPU_COMPILER": ""}, "CPU_COMPILER", "llvm"),
        ({"TILEWRIGHT_CACHE_DIR": "/tmp/a b"}, "TILEWRIGHT_CACHE_DIR", "/tmp/a b"),
    ],
)
def test_environment(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], name: str, value: Value) -> None:
    for variable, text in variables.items():
        monkeypatch.setenv(variable, text)
    config.load_environment()
    assert getattr(options, name) == value


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("DEBUG", "lots", "an integer of at least 0"),
        ("DEBUG", "1.5", "an integer of at least 0"),
        ("NOOPT", "-2", "an integer of at least 0"),
        ("REWRITE_LIMIT", "-2", "an integer of at least -1"),
        ("CPU_COMPILER", "tcc", "one of 'llvm', 'clang', 'gcc'"),
    ],
)
def test_bad_environment_is_named(variable: str, text: str, expected: str) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", "import tilewright.base.config"],
        env={**os.environ, variable: text},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 1
    assert f"ConfigError: environment variable {variable}: " in finished.stderr
    assert text in finished.stderr
    assert f"is not {expected}" in finished.stderr
    # The cause is our message alone, without the traceback of the conversion that failed.
    assert "invalid literal" not in finished.stderr


def test_context_sets_and_restores() -> None:
    with Context(DEBUG=2, DEVICE="PYTHON") as entered:
        assert (options.DEBUG, options.DEVICE, options.NOOPT) == (2, "PYTHON", 0)
        with Context(DEBUG=5, NOOPT=4):
            assert (options.DEBUG, options.DEVICE, options.NOOPT) == (5, "PYTHON", 4)
        with entered:
            assert options.DEBUG == 2
        assert (options.DEBUG, options.NOOPT) == (2, 0)
    assert (options.DEBUG, options.DEVICE) == (0, "")
    assert type(options) is Options


def test_context_restores_when_an_exception_passes() -> None:
    with pytest.raises(KeyError), Context(DEBUG=2), Context(DEBUG=3):
        raise KeyError
    assert options.DEBUG == 0
    assert type(options) is Options


def test_context_is_a_decorator() -> None:
    @Context(NOOPT=4)
    def width(extra: int) -> int:
        """The docstring stays."""
        return options.NOOPT + extra if extra else width(1)

    assert width(0) == 5
    assert width.__doc__ == "The docstring stays."
    assert options.NOOPT == 0


def test_context_belongs_to_its_thread() -> None:
    with Context(DEBUG=2):
        assert read_in_thread("DEBUG") == 0
        assert read_in_thread("DEBUG", Context(DEBUG=3)) == 3
        assert options.DEBUG == 2
        handed_over = overrides()
    assert handed_over == {"DEBUG": 2}
    assert read_in_thread("DEBUG", Context(**handed_over)) == 2
    assert overrides() == {}


def test_threads_do_not_disturb_each_other() -> None:
    wrong: list[tuple[int, int]] = []
    start = threading.Barrier(4)

    def work(number: int) -> None:
        shared_entry = Context(NOOPT=number)
        start.wait()
        for step in range(300):
            expected = number + step
            with shared_entry, Context(DEBUG=expected):
                if (options.NOOPT, options.DEBUG) != (number, expected):
                    wrong.append((number, step))
            if (options.NOOPT, options.DEBUG) != (0, 0):
                wrong.append((number, step))

    threads = [threading.Thread(target=work, args=(1000 * number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert type(options) is Options


def test_tasks_do_not_disturb_each_other() -> None:
    async def work(number: int) -> int:
        with Context(DEBUG=number):
            await asyncio.sleep(0)
            return options.DEBUG

    async def both() -> list[int]:
        return await asyncio.gather(work(1), work(2))

    assert asyncio.run(both()) == [1, 2]


def test_set_option_is_for_the_process() -> None:
    set_option("DEBUG", 3)
    assert options.DEBUG == 3
    assert read_in_thread("DEBUG") == 3
    with Context(DEBUG=1):
        set_option("DEBUG", 4)
        set_option("NOOPT", 2)
        assert (options.DEBUG, options.NOOPT) == (1, 2)
    assert (options.DEBUG, options.NOOPT) == (4, 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"DEBGU": 1}, "did you mean DEBUG?"),
        ({"tilewright_cache": "x"}, "did you mean TILEWRIGHT_CACHE_DIR?"),
        ({"QQQQ": 1}, "JIT, JOIN_LAUNCHES, KEEP_NAMED, LIFT_SIZES, NOOPT, OPT_LIMIT, PASS_LIMIT,"),
        ({"DEBUG": "2"}, "'2' is not an integer of at least 0"),
        ({"DEBUG": -1}, "-1 is not an integer of at least 0"),
        ({"DEBUG": 1.0}, "1.0 is not an integer"),
        ({"DEVICE": 1}, "1 is not text"),
        ({"CPU_COMPILER": "tcc"}, "'tcc' is not one of 'llvm', 'clang', 'gcc'"),
    ],
)
def test_mistakes_are_explained(values: dict[str, Value], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Context(**values)
    assert message in str(caught.value)
    assert caught.value.location is not None
    assert caught.value.location[0] == __file__
    (name,) = values
    with pytest.raises(ConfigError):
        set_option(name, values[name])


def test_a_boolean_is_a_number() -> None:
    with Context(CACHE=False):
        assert options.CACHE == 0
        assert type(options.CACHE) is int


def test_assignment_is_refused_with_the_way_to_do_it() -> None:
    with pytest.raises(ConfigError, match=r"Context\(DEBUG=2\)"):
        options.DEBUG = 2
    with pytest.raises(ConfigError, match="did you mean DEBUG"):
        options.DEBGU = 2  # type: ignore[attr-defined]
    assert options.DEBUG == 0


def test_reading_is_as_cheap_as_an_attribute() -> None:
    class Plain:
        def __init__(self) -> None:
            self.DEBUG = 0

    def seconds(target: object) -> float:
        return timeit.timeit("target.DEBUG", globals={"target": target}, number=2_000)

    with Context(DEBUG=1):
        pass
    # The least of many short times, which no other program on the machine makes less, the two in turns.
    ours, plain = seconds(options), seconds(Plain())
    for _ in range(500):
        ours, plain = min(ours, seconds(options)), min(plain, seconds(Plain()))
    assert ours < 4 * plain, "a threading.local takes nine times as long"


def test_the_page_has_a_row_for_every_option() -> None:
    page = config.options_markdown()
    assert [name for name in DECLARATIONS if f"| `{name}` |" not in page] == []
