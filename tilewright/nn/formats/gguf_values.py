"""Values of a GGUF header that stay encoded. In: the bytes of a header. Out: lists of strings, each decoded when it is
accessed, and the types of tensors. A vocabulary has hundreds of thousands of strings, most of which are never accessed:
as Python strings they take several times their bytes in the file."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard, overload

from tilewright.base.records import NamedTuple

_LENGTH_BYTES = 8  # bytes of the length before each string


class Texts(Sequence[str]):
    """Strings in UTF-8, each after its length. `starts` has the offset of each string from `first`, and that of the
    end."""

    def __init__(self, data: memoryview, first: int, starts: array[int]) -> None:
        self._data = data
        self._first = first
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        numbers = range(len(self))[index]
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        start, end = self._starts[numbers], self._starts[numbers + 1] - _LENGTH_BYTES
        return str(self._data[self._first + start : self._first + end], "utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        data, first, start = self._data, self._first, self._starts[0]
        for after in self._starts[1:]:
            yield str(data[first + start : first + after - _LENGTH_BYTES], "utf-8", "replace")
            start = after

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"<{len(self)} texts: {shown}{', ...' if len(self) > 3 else ''}>"


def as_plain(value: Any) -> Any:
    """A value of a header as numbers, strings and lists of them."""
    return [as_plain(each) for each in value] if isinstance(value, list | array | Texts) else value


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


# ---------------------------------------------------------------- types of tensors


class Kind(NamedTuple):
    """A type of the format: its name, elements per block and bytes per block."""

    number: int
    name: str
    size: int
    nbytes: int


_ALL = (
    Kind(0, "F32", 1, 4),
    Kind(1, "F16", 1, 2),
    Kind(2, "Q4_0", 32, 18),
    Kind(3, "Q4_1", 32, 20),
    Kind(6, "Q5_0", 32, 22),
    Kind(7, "Q5_1", 32, 24),
    Kind(8, "Q8_0", 32, 34),
    Kind(9, "Q8_1", 32, 40),
    Kind(10, "Q2_K", 256, 84),
    Kind(11, "Q3_K", 256, 110),
    Kind(12, "Q4_K", 256, 144),
    Kind(13, "Q5_K", 256, 176),
    Kind(14, "Q6_K", 256, 210),
    Kind(15, "Q8_K", 256, 292),
    Kind(16, "IQ2_XXS", 256, 66),
    Kind(17, "IQ2_XS", 256, 74),
    Kind(18, "IQ3_XXS", 256, 98),
    Kind(19, "IQ1_S", 256, 50),
    Kind(20, "IQ4_NL", 32, 18),
    Kind(21, "IQ3_S", 256, 110),
    Kind(22, "IQ2_S", 256, 82),
    Kind(23, "IQ4_XS", 256, 136),
    Kind(24, "I8", 1, 1),
    Kind(25, "I16", 1, 2),
    Kind(26, "I32", 1, 4),
    Kind(27, "I64", 1, 8),
    Kind(28, "F64", 1, 8),
    Kind(29, "IQ1_M", 256, 56),
    Kind(30, "BF16", 1, 2),
    Kind(34, "TQ1_0", 256, 54),
    Kind(35, "TQ2_0", 256, 66),
    Kind(39, "MXFP4", 32, 17),
    Kind(40, "NVFP4", 64, 36),
    Kind(41, "Q1_0", 128, 18),
)
KINDS = {kind.number: kind for kind in _ALL}
