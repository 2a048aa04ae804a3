"""The process of a session: `python -m tilewright.debug.investigate FOLDER SECONDS JOBS`. A signal to end it ends every
process that it has started, first."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

from tilewright.debug.investigate.investigation import Investigation
from tilewright.debug.memory import SessionStore


def main(folder: str, seconds: str, jobs: str) -> None:
    session = Investigation(SessionStore(Path(folder)), float(seconds), int(jobs))

    def end(_number: int, _frame: FrameType | None) -> None:
        session.processes.cancel()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    session.run()


if __name__ == "__main__":
    main(*sys.argv[1:4])
