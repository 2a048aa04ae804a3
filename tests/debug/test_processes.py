"""Processes that hang, crash or print without end are ended, with all that they started, and told of."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from tilewright.debug.investigate import process as process_module
from tilewright.debug.investigate.process import Processes
from tilewright.debug.investigate.trial import in_child

GRANDCHILD = """
import os, subprocess, sys, time
own = sys.argv[2] == "apart"
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=own)
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(600)
"""


def run(text: str, seconds: float = 20.0) -> process_module.Ended:
    return Processes().run([sys.executable, "-c", text], {}, seconds)


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def await_file(path: Path) -> int:
    while not path.exists() or not path.read_text():
        time.sleep(0.02)
    return int(path.read_text())


def test_a_process_that_ends() -> None:
    ended = run("import sys; print('one'); sys.stderr.write('two'); sys.exit(3)")
    assert (ended.ending, ended.status, ended.output.strip(), ended.errors) == ("finished", 3, "one", "two")
    assert not ended.is_success


def test_a_crash_of_the_interpreter() -> None:
    ended = run("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert ended.ending == "crash"
    assert ended.words == "crashed with SIGSEGV"


def test_a_hang() -> None:
    ended = run("while True: pass", 0.5)
    assert ended.ending == "timeout"


def test_output_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "MAX_OUTPUT_BYTES", 1 << 20)
    ended = run("while True: print('x' * 1000)")
    assert ended.ending == "flood"
    assert len(ended.output) <= 4 * process_module.KEPT_BYTES


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="looks at processes through /proc")
@pytest.mark.parametrize("session", ["same", "apart"])
def test_what_it_started_is_ended_too(session: str, tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    processes = Processes()
    command = [sys.executable, "-c", GRANDCHILD, str(noted), session]
    worker = threading.Thread(target=lambda: processes.run(command, {}, 60.0))
    worker.start()
    grandchild = await_file(noted)
    assert is_alive(grandchild)
    processes.cancel()
    worker.join(20)
    assert not worker.is_alive()
    for _ in range(100):
        if not is_alive(grandchild):
            break
        time.sleep(0.05)
    assert not is_alive(grandchild)
    assert processes.run(command, {}, 60.0).ending == "cancelled"


def crash() -> None:
    os.abort()


def hang() -> None:
    while True:
        time.sleep(1)


def test_a_child_gives_its_value_or_its_end() -> None:
    assert in_child(lambda: {"a": [1, 2]}, 10.0) == {"value": {"a": [1, 2]}}
    assert in_child(crash, 10.0) == {"ending": "crash with SIGABRT"}
    assert in_child(hang, 0.3) == {"ending": "no end after 0 s"}
    assert in_child(lambda: sys.exit(4), 10.0) == {"ending": "exit with status 1"}
