"""Every test runs with the graph verified after each pass and with a program cache of its own; no verdict depends on
how long something takes."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import itertools
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings


def _remove(folder: str, owner: int) -> None:
    """At the end of the process that made the folder; a fork of it leaves it alone."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


# Set before the package is imported, because options are read from the environment then. Workers of xdist, and
# processes that tests start, inherit the folder.
os.environ.setdefault("VERIFY_GRAPH", "1")
if "TILEWRIGHT_CACHE_DIR" not in os.environ:
    os.environ["TILEWRIGHT_CACHE_DIR"] = tempfile.mkdtemp(prefix="tilewright-tests-")
    atexit.register(_remove, os.environ["TILEWRIGHT_CACHE_DIR"], os.getpid())
os.environ.setdefault("POCL_CACHE_DIR", os.path.join(os.environ["TILEWRIGHT_CACHE_DIR"], "pocl"))
os.makedirs(os.environ["POCL_CACHE_DIR"], exist_ok=True)

# Bytecode is kept even where the environment forbids it: without it each worker rewrites the asserts of all files (10
# seconds of a core), and each process that a test starts compiles the package.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# How long an example takes says what else the machine does. The same examples every time, so that a change that has
# nothing to do with a find is not held up by it; `pytest --hypothesis-profile=fresh` looks at others.
settings.register_profile("fresh", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("tests", settings.get_profile("fresh"), derandomize=True)
settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the texts under tests/golden anew")


def pytest_configure(config: pytest.Config) -> None:
    """Each worker of xdist begins to collect at another folder. The first one to import a file rewrites its asserts,
    which takes as long as all else that collection does; the others load its bytecode."""
    worker, workers = os.environ.get("PYTEST_XDIST_WORKER", ""), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
    if worker and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        sizes = {folder: sum(path.stat().st_size for path in folder.rglob("*.py")) for folder in _folders(config)}
        start = sum(sizes.values()) * int(worker.removeprefix("gw")) // int(workers)
        before = itertools.accumulate(sizes.values(), initial=0)
        first = sum(size < start for size in before)
        config.args = [str(folder) for folder in [*sizes][first:] + [*sizes][:first]]


def _folders(config: pytest.Config) -> list[Path]:
    folders = sorted(path for path in (config.rootpath / "tests").iterdir() if path.is_dir())
    return [folder for folder in folders if any(folder.glob("test_*.py"))]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In the same order in every worker. Cases that a sample stands for are marked slow. With a sample of n, the cases
    of two tables whose inner one has n rows are a diagonal: each row of the outer table, and the rows of the inner one
    in turn."""
    from tests.devices import mark_cases_of_slow_devices

    items.sort(key=lambda item: item.path.parent)
    mark_cases_of_slow_devices(items)
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for found in cases.values():
        marker = found[0].get_closest_marker("sampled")
        assert marker is not None
        (one_in,) = marker.args
        for number, item in enumerate(found):
            if (number + number // one_in) % one_in:
                item.add_marker(pytest.mark.slow)


_last_file = [Path()]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What the tests of other files left is looked through for garbage once: the plans of thousands of tests, which are
    kept, made each collection that a test asks for take 1.5 seconds."""
    if item.path != _last_file[0]:
        _last_file[0] = item.path
        gc.collect()
        gc.freeze()
    if item.get_closest_marker("torch") and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed; `make test-torch` installs it")


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end: to look through them for garbage again and again takes a tenth of all."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says which devices the op table ran on, and which are not on this machine."""
    reports = [report for found in terminalreporter.stats.values() for report in found]
    if any("ops/test_table.py" in getattr(report, "nodeid", "") for report in reports):
        from tests.devices import summary

        terminalreporter.write_line(summary())


@pytest.fixture(autouse=True, scope="session")
def fast_paths_at_once() -> None:
    """The second replay of a jitted function takes the fast path already: what tests of state that changes look at."""
    from tilewright.engine.jit import quick

    quick.QUICK_AFTER = 1
