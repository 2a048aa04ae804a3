"""Records: what `dataclasses` promise, without the time they take to make."""

from __future__ import annotations

import collections
import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from tilewright.base.records import NamedTuple, field, field_names, mutable_record, record, replace


@record
class Point:
    """A frozen one."""

    x: int
    y: int = 2
    kinds: ClassVar[tuple[str, ...]] = ("plane",)
    notes: list[str] = field(default_factory=list, compare=False)

    @property
    def total(self) -> int:
        return self.x + self.y


@record
class Other:
    x: int
    y: int = 2


@record
class Deeper(Point):
    z: int = 3


@record
class Empty:
    pass


@record
class Derived:
    side: int
    area: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "area", self.side**2)


class Named(NamedTuple):
    """Two."""

    a: int
    b: str = "b"

    def total(self) -> str:
        return f"{self.a}{self.b}"


T = TypeVar("T")


class Listed(NamedTuple, Generic[T]):
    first: T
    rest: list[T]


@mutable_record
class Counter:
    name: str
    counts: dict[str, int] = field(default_factory=dict)


def test_values_defaults_and_equality() -> None:
    assert (Point(1).x, Point(1).y, Point(1, y=5).total, Point.kinds) == (1, 2, 6, ("plane",))
    assert Point(1) == Point(1, 2)
    assert hash(Point(1)) == hash(Point(1, 2))
    assert Point(1) != Point(2)
    assert Point(1, 2, ["a"]) == Point(1, 2, ["b"])
    assert Point(1).notes is not Point(1).notes
    assert Point(1) != Other(1)
    assert Other(1) != (1, 2)
    assert Empty() == Empty()
    assert hash(Empty()) == hash(Empty())
    assert Deeper(1, z=9).z == 9
    assert Deeper(1).total == 3
    assert field_names(Deeper) == ("x", "y", "notes", "z")
    assert Deeper(1) != Point(1)
    assert repr(Other(1)) == "Other(x=1, y=2)"
    assert "notes" not in repr(Point(1))
    assert not hasattr(Point(1), "__dict__")


@pytest.mark.parametrize("arguments", [(), (1, 2, [], 4)])
def test_wrong_arguments_name_the_class(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match=r"Point\.__init__\(\)"):
        Point(*arguments)
    with pytest.raises(TypeError, match="'w'"):
        Point(1, w=3)  # type: ignore[call-arg]


def test_frozen_and_mutable() -> None:
    with pytest.raises(AttributeError, match="Point is immutable"):
        Point(1).x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match="immutable"):
        del Point(1).x
    counter, other = Counter("a"), Counter("a")
    counter.counts["k"] = 1
    counter.name = "b"
    assert counter.name == "b"
    assert other.counts == {}
    assert counter != other
    assert len({counter, other}) == 2


def test_replace_copy_and_pickle() -> None:
    point = Point(1, 4, ["kept"])
    assert replace(point, x=7) == Point(7, 4)
    assert replace(point, x=7).notes == ["kept"]
    for again in (copy.copy(point), pickle.loads(pickle.dumps(point)), copy.deepcopy(point)):
        assert again == point
        assert again.notes == ["kept"]
    assert replace(Derived(3), side=4).area == 16
    assert pickle.loads(pickle.dumps(Derived(3))).area == 9
    with pytest.raises(TypeError):
        replace(point, w=1)


def test_functions_of_dataclasses_accept_records() -> None:
    assert dataclasses.is_dataclass(Point)
    assert [each.name for each in dataclasses.fields(Point)] == ["x", "y", "notes"]
    assert dataclasses.replace(Point(1), y=9) == Point(1, 9)
    assert dataclasses.asdict(Derived(2)) == {"side": 2, "area": 4}
    assert str(inspect.signature(Point)) == "(x, y=2, notes=<factory>)"
    assert str(inspect.signature(Deeper(1).__init__)) == "(x, y=2, notes=<factory>, z=3)"


def test_a_first_result_imports_no_dataclasses() -> None:
    """Making a dataclass takes 0.8 ms, importing the module 10 ms: a process pays both before its first result."""
    program = """
import sys
before = set(sys.modules)
from tilewright import Tensor
assert (Tensor([1, 2, 3]) + 2).tolist() == [3, 4, 5]
print(sorted({"dataclasses", "inspect", "pathlib", "numpy"} & (set(sys.modules) - before)))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_named_tuples_are_those_of_collections() -> None:
    made = Named(1)
    assert made == (1, "b")
    assert (made.total(), Named._fields, Named._field_defaults, Named.__doc__) == ("1b", ("a", "b"), {"b": "b"}, "Two.")
    assert pickle.loads(pickle.dumps(made._replace(b="c"))) == Named(1, "c")
    assert Listed[int](1, [2]).rest == [2]
    assert isinstance(pickle.loads(pickle.dumps(Listed(1, []))), Listed)


def test_named_tuples_have_the_methods_of_those_of_collections() -> None:
    plain = collections.namedtuple("Named", "a b", defaults=["b"])
    for given in (Named, plain):
        made: Any = given(1)
        assert (repr(made), made._asdict(), made._replace(a=3)) == ("Named(a=1, b='b')", {"a": 1, "b": "b"}, (3, "b"))
        assert (given._make([4, "c"]), given.__match_args__, hash(made)) == ((4, "c"), ("a", "b"), hash((1, "b")))
        assert str(inspect.signature(given)) == "(a, b='b')"
        assert copy.copy(made) == made
        for wrong in (lambda: given(), lambda: given(1, c=2), lambda: given._make([1])):  # noqa: B023
            with pytest.raises(TypeError):
                wrong()
        with pytest.raises((ValueError, TypeError)):
            made._replace(c=1)
    assert (Named.a.__doc__, type(vars(Named)["a"])) == ("Field 0.", type(vars(plain)["a"]))
    with pytest.raises(TypeError, match="without a default"):

        class Wrong(NamedTuple):
            a: int = 1
            b: int  # type: ignore[misc]
