"""BEAM=n with real processes on the CPU: results, records on disk, and candidates that crash, hang or lie."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.engine.search_faults import SIGN
from tilewright import Context, Tensor
from tilewright.base.events import Event, subscribe
from tilewright.engine.compilation.compile import forget_kernels
from tilewright.engine.compilation.search import beam
from tilewright.engine.compilation.search.beam import find_opts
from tilewright.engine.compilation.search.process import Process, Timeouts
from tilewright.engine.compilation.search.store import read_search
from tilewright.graph.uop import UOp
from tilewright.runtime.cache import cache_folder
from tilewright.runtime.device import open_driver


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with Context(TILEWRIGHT_CACHE_DIR=str(tmp_path), CACHE=1, BEAM=1, BEAM_CANDIDATES=12, BEAM_SECONDS=3600):
        forget_kernels()
        beam._searched.clear()
        yield
    forget_kernels()
    beam._searched.clear()


def small_kernel() -> UOp:
    (item,) = (Tensor.empty(24, 32).sin() + 1).schedule()
    assert item.ast is not None
    return item.ast


def search_folder() -> Path:
    return Path(cache_folder()) / "search"


def searches() -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(search_folder().glob("*"))]


def test_a_searched_kernel_gives_the_right_result_and_is_looked_up_next_time() -> None:
    left = np.arange(12 * 20, dtype=np.float32).reshape(12, 20)
    right = np.arange(20 * 16, dtype=np.float32).reshape(20, 16)
    seen: list[Event] = []
    with subscribe(seen.append, kinds=("search",)):
        np.testing.assert_array_equal((Tensor(left) @ Tensor(right)).numpy(), left @ right)
    (record,) = searches()
    assert record["complete"]
    assert record["best"] is not None
    assert seen
    assert seen[-1]["device"] == "CPU"
    measured = len(seen)
    forget_kernels()
    beam._searched.clear()
    with subscribe(seen.append, kinds=("search",)):
        np.testing.assert_array_equal((Tensor(left) @ Tensor(right)).numpy(), left @ right)
    assert len(seen) == measured, "the records answer, nothing is measured again"


def test_candidates_that_crash_hang_or_lie_are_dropped_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time is up for a candidate as soon as it says that it hangs, and for no other."""
    sign, receive = tmp_path / "it hangs", Process.receive

    def receive_or_see_the_sign(self: Process) -> tuple[str, object]:
        while not self.connection.poll(0.02) and time.monotonic() < self.deadline:
            if sign.exists():
                sign.unlink()
                self.deadline = time.monotonic()
        return receive(self)

    monkeypatch.setenv(SIGN, str(sign))
    monkeypatch.setattr(Process, "receive", receive_or_see_the_sign)
    with Context(BEAM=2, BEAM_CANDIDATES=20):
        opts = find_opts(small_kernel(), "CPU", "tests.engine.search_faults:faults", Timeouts(300.0, 300.0))
    search = read_search(small_kernel(), open_driver("CPU").target)
    assert search is not None
    reasons = {trial.reason.partition(":")[0] for trial in search.dropped}
    assert reasons == {"crashed", "hung", "wrong"}
    assert search.best is not None
    assert search.best.opts == opts


@Context(BEAM_CANDIDATES=4)
def test_a_winner_that_is_wrong_on_fresh_numbers_is_not_kept() -> None:
    opts = find_opts(small_kernel(), "CPU", "tests.engine.search_faults:wrong_later")
    assert opts == (), "every other candidate lies"
    search = read_search(small_kernel(), open_driver("CPU").target)
    assert search is not None
    assert any(trial.reason.startswith("as the winner, on fresh numbers: wrong") for trial in search.dropped)


@pytest.mark.slow
def test_records_move_to_another_cache_folder(tmp_path: Path) -> None:
    opts = find_opts(small_kernel(), "CPU")
    other = tmp_path / "another machine"
    shutil.copytree(search_folder(), other / "search")
    beam._searched.clear()
    seen: list[Event] = []
    with Context(TILEWRIGHT_CACHE_DIR=str(other)), subscribe(seen.append, kinds=("search",)):
        assert find_opts(small_kernel(), "CPU") == opts
    assert not seen


@Context(BEAM_CANDIDATES=3)
@pytest.mark.slow
def test_a_damaged_record_is_made_anew() -> None:
    find_opts(small_kernel(), "CPU")
    (path,) = search_folder().iterdir()
    path.write_text(path.read_text()[:100])
    beam._searched.clear()
    assert read_search(small_kernel(), open_driver("CPU").target) is None
    find_opts(small_kernel(), "CPU")
    assert read_search(small_kernel(), open_driver("CPU").target) is not None


def test_stated_opts_are_not_searched_and_neither_is_the_emulator() -> None:
    value = Tensor(np.ones((4, 4), np.float32), device="PYTHON") + 1
    np.testing.assert_array_equal(value.numpy(), np.full((4, 4), 2.0))
    assert not searches()
