"""What the worker of a search is told to do to its candidates in tests/engine/test_search.py."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from tilewright.graph.records import Opt, OptOps

# The variable that names the file which a candidate makes before it hangs.
SIGN = "TILEWRIGHT_TEST_SIGN_OF_A_HANG"


def tile(opts: tuple[Opt, ...]) -> int:
    size = 1
    for opt in opts:
        size *= opt.arg if opt.op is OptOps.UPCAST else 1
    return size


class Faults:
    """Tiles of 2 crash, of 4 hang, larger ones compute something else."""

    def before_run(self, opts: tuple[Opt, ...]) -> None:
        if tile(opts) == 2:
            os.abort()
        if tile(opts) == 4:
            Path(os.environ[SIGN]).touch()
            time.sleep(1000)

    def after_run(self, opts: tuple[Opt, ...], results: list[Any]) -> list[Any]:
        return [result + 1 for result in results] if tile(opts) >= 8 else results


class WrongLater:
    """Every tiled candidate is right the first time, when it is measured, and wrong when the winner is checked."""

    def __init__(self) -> None:
        self.runs: dict[tuple[Opt, ...], int] = {}

    def before_run(self, opts: tuple[Opt, ...]) -> None:
        return

    def after_run(self, opts: tuple[Opt, ...], results: list[Any]) -> list[Any]:
        self.runs[opts] = self.runs.get(opts, 0) + 1
        return [result + 1 for result in results] if opts and self.runs[opts] > 1 else results


faults = Faults()
wrong_later = WrongLater()
