"""Values out of range. In: the CHECK nodes of a graph, and the words that a run of it left behind. Out: an error at the
line that made the check, with the value that failed. A word is 0 unless its check failed, so a run without
failures costs one read of each word; after an error the words are set to 0 for the next run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import IndexingError
from tilewright.base.location import Location
from tilewright.base.records import NamedTuple
from tilewright.graph.records import Schedule
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import Buffer
from tilewright.runtime.device import Driver, HostDriver, open_driver


class Site(NamedTuple):
    """A check as the user wrote it: equal graphs share a schedule, and each has lines of its own."""

    operation: str
    of_what: str
    size: int
    wraps: bool
    dtype: DType
    line: Location | None


def site_of(check: UOp) -> Site:
    arg = check.arg
    return Site(arg.operation, arg.of_what, arg.size, arg.wraps, check.dtype, check.line)


class Words:
    """The words of one kernel's checks."""

    __slots__ = ("_driver", "buffer", "view")

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self._driver: Driver = open_driver(buffer.device)
        # The words themselves, on a device whose work is done when a launch returns.
        shared = self._driver.host_view(buffer.ensure()) if isinstance(self._driver, HostDriver) else None
        self.view = None if shared is None else self._integers(shared[: buffer.nbytes])
        self.clear()

    def read(self) -> Sequence[int]:
        if self.view is not None:
            return self.view
        copied = memoryview(bytearray(self.buffer.nbytes))
        self._driver.copy_out(self.buffer.ensure(), 0, copied)
        return self._integers(copied)

    def _integers(self, view: memoryview) -> Sequence[int]:
        return view.cast("q" if self.buffer.dtype is dtypes.int64 else "i")

    def clear(self) -> None:
        self._driver.copy_in(self.buffer.ensure(), 0, memoryview(bytes(self.buffer.nbytes)))


class Checked(NamedTuple):
    """A kernel's checks in one run."""

    words: Words
    numbers: tuple[int, ...]
    sites: Sequence[Site]


# Words that no run uses, all 0. Making them takes longer than launching a small kernel.
_spare: dict[tuple[str, DType, int], list[Words]] = {}


def take_words(plan: Schedule, buffers: list[Buffer | None], sites: Sequence[Site]) -> list[Checked]:
    """Adds words to the buffers of a run, for each kernel that has checks."""
    found = []
    for item in plan.items:
        if item.checks:
            slot = plan.slots[item.slots[-1]]
            spare = _spare.get((slot.device, slot.dtype, slot.size))
            try:
                words = spare.pop() if spare else Words(Buffer(slot.device, slot.dtype, slot.size))
            except IndexError:  # another thread took the last ones
                words = Words(Buffer(slot.device, slot.dtype, slot.size))
            buffers[item.slots[-1]] = words.buffer
            found.append(Checked(words, item.checks, sites))
    return found


def return_words(checked: Iterable[Checked]) -> None:
    """Frees the words of a run that is over and will not be replayed."""
    for words, _, _ in checked:
        buffer = words.buffer
        _spare.setdefault((buffer.device, buffer.dtype, buffer.size), []).append(words)


class Failure(NamedTuple):
    """The first check that failed, as an error to raise, and the numbers of all that did."""

    error: IndexingError
    numbers: frozenset[int]


def find_failure(checked: Iterable[Checked]) -> Failure | None:
    """The first failed check of a run, None where there is none; the words are reset for the next run."""
    for words, _, _ in checked:
        if any(words.view or words.read()):
            return _collect(checked)
    return None


def _collect(checked: Iterable[Checked]) -> Failure:
    failed = [
        (number, error_of(sites[number], value))
        for words, numbers, sites in checked
        for number, value in zip(numbers, words.read(), strict=True)
        if value
    ]
    for words, _, _ in checked:
        words.clear()
    return Failure(failed[0][1], frozenset(number for number, _ in failed))


def error_of(site: Site, word: int) -> IndexingError:
    value = word % (1 << site.dtype.bits) if site.dtype.is_unsigned else word
    if site.wraps and value < 0:
        value -= site.size  # as the user gave it
    message = f"{'index' if site.wraps else 'class'} {value} is out of range for {site.of_what}"
    remedy = f"give numbers in {-site.size if site.wraps else 0}..{site.size - 1}"
    return IndexingError(site.operation, message, remedy, location=site.line)
