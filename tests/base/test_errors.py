"""The exception tree: what is an instance of what, what a message says, and whose line it names."""

from __future__ import annotations

import contextlib
import functools
import pickle
import subprocess
import sys
from pathlib import Path
from types import FrameType

import pytest

import tilewright
from tilewright.base import errors
from tilewright.base.errors import (
    CompileError,
    EmulatorError,
    InternalError,
    ParseError,
    ShapeError,
    TilewrightError,
    UserError,
    VerifyError,
)
from tilewright.base.location import user_location

ALL_ERRORS = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
USER_ERRORS = [error for error in ALL_ERRORS if issubclass(error, UserError) and error is not UserError]


def line_here() -> int:
    """The line of the caller, so that a test need not know where it stands in the file."""
    frame = sys._getframe(1)
    assert isinstance(frame, FrameType)
    return frame.f_lineno


@pytest.mark.parametrize(
    ("name", "also"),
    [
        ("ShapeError", ValueError),
        ("AxisError", ShapeError),
        ("AxisError", IndexError),
        ("DTypeError", TypeError),
        ("DeviceError", UserError),
        ("IndexingError", IndexError),
        ("KernelError", UserError),
        ("KernelOptError", UserError),
        ("UnsupportedError", NotImplementedError),
        ("OutOfMemoryError", MemoryError),
        ("RealizeError", UserError),
        ("ConfigError", ValueError),
        ("CacheError", UserError),
        ("JitError", UserError),
        ("ParseError", ValueError),
        ("OutOfBoundsError", EmulatorError),
        ("UninitialisedReadError", EmulatorError),
        ("RaceError", EmulatorError),
        ("UnwrittenOutputError", EmulatorError),
        ("VerifyError", InternalError),
        ("CompileError", InternalError),
    ],
)
def test_tree(name: str, also: type[Exception]) -> None:
    assert issubclass(getattr(errors, name), also)


def test_ours_and_the_users_are_apart() -> None:
    both = [error.__name__ for error in ALL_ERRORS if issubclass(error, UserError) and issubclass(error, InternalError)]
    assert both == []
    assert all(issubclass(error, TilewrightError) for error in ALL_ERRORS)


def test_tree_is_drawn_at_the_top() -> None:
    drawing = errors.__doc__ or ""
    assert [error.__name__ for error in ALL_ERRORS if f"  {error.__name__}" not in drawing] == []


@pytest.mark.parametrize("error", USER_ERRORS, ids=lambda error: error.__name__)
def test_user_error_shows_broken_and_fixed(error: type[UserError]) -> None:
    docstring = error.__doc__ or ""
    assert 0 < docstring.index("Broken") < docstring.index("Fixed")


def test_message_has_operation_shapes_line_and_remedy() -> None:
    error = ShapeError("matmul", "(2, 3) and (4, 5): 3 is not 4", "transpose the second")
    line = line_here() - 1
    assert str(error).splitlines() == [
        "matmul: (2, 3) and (4, 5): 3 is not 4",
        f"  at {__file__}:{line}",
        "  to fix it: transpose the second",
    ]


def test_location_may_be_that_of_an_earlier_line() -> None:
    error = ShapeError("add", "wrong", location=("model.py", 7))
    assert str(error) == "add: wrong\n  at model.py:7"


def test_parse_error_points_at_the_place() -> None:
    text = "first\nsecond (third\nfourth"
    error = ParseError("graph text", "unclosed", text=text, position=text.index("("))
    lines = str(error).splitlines()
    assert lines[1] == "  line 2: second (third"
    assert lines[2].index("^") == lines[1].index("(")


def test_internal_errors_say_how_to_report() -> None:
    assert "VERIFY_GRAPH=1 DEBUG=5" in str(InternalError("no rule for x"))
    assert str(InternalError("no rule for x")).startswith("internal error: no rule for x\n")


def test_verify_error_names_stage_pass_and_node() -> None:
    text = str(VerifyError("two sources expected", stage="codegen", pass_name="split_loops", node=("ADD", 1)))
    assert "  stage: codegen\n  pass: split_loops\n  node: ('ADD', 1)\n" in text


def test_compile_error_numbers_the_source() -> None:
    assert "     1 | int a\n     2 | b;\n" in str(CompileError("expected ';'", source="int a\nb;"))


@pytest.mark.parametrize(
    "error",
    [
        ShapeError("add", "wrong", "right"),
        ParseError("parse", "wrong", text="abc", position=1),
        VerifyError("wrong", stage="graph", node="node"),
        CompileError("wrong", source="text"),
        errors.OutOfMemoryError("realize", "4 GB", "free something"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_cross_process_boundaries(error: TilewrightError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_user_location_is_the_calling_line() -> None:
    assert user_location() == (__file__, line_here())


def call_from_package(source: str, filename: str, **names: object) -> object:
    """Run `source` as if it were a file of the package; it must define `entry`, which is called from this line."""
    namespace = {"__name__": "tilewright.probe", "user_location": user_location, **names}
    exec(compile(source, filename, "exec"), namespace)
    entry = namespace["entry"]
    assert callable(entry)
    return entry()


PACKAGE_FOLDER = str(Path(tilewright.__file__).resolve().parent)
INNER = "def entry():\n    return inner()\ndef inner():\n    return user_location()\n"
MANAGED = "@decorate\ndef entry():\n    return user_location()\n"


@contextlib.contextmanager
def nothing_special() -> contextlib.AbstractContextManager[None]:  # type: ignore[misc]
    yield


@pytest.mark.parametrize(
    ("source", "filename", "decorator"),
    [
        (INNER, f"{PACKAGE_FOLDER}/tensor/probe.py", None),
        (INNER, "<compiled matcher>", None),
        (MANAGED, f"{PACKAGE_FOLDER}/tensor/probe.py", nothing_special()),
        (MANAGED, f"{PACKAGE_FOLDER}/tensor/probe.py", functools.lru_cache),
    ],
    ids=["package file", "generated code", "contextlib between", "functools between"],
)
def test_user_location_passes_over_the_package(source: str, filename: str, decorator: object) -> None:
    found = call_from_package(source, filename, decorate=decorator)
    assert isinstance(found, tuple)
    assert found[0] == __file__
    assert found[1] == call_from_package.__code__.co_firstlineno + 6


def test_folder_with_a_longer_name_is_not_the_package() -> None:
    filename = f"{PACKAGE_FOLDER}_models/net.py"
    assert call_from_package(INNER, filename) == (filename, 4)


def test_user_location_at_a_prompt() -> None:
    program = "from tilewright.base.location import user_location\nprint(user_location())"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout == "('<string>', 2)\n"
