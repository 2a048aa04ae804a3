"""The backends there are, in order of preference. In: nothing. Out: a name and the module that opens it.
A backend is added here by one line; its module is imported when a device of it is first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from tilewright.runtime.device import Driver

BACKENDS: dict[str, str] = {
    "CPU": "tilewright.backends.cpu.device",
    "CUDA": "tilewright.backends.cuda.device",
    "DISK": "tilewright.backends.disk.device",
    "HIP": "tilewright.backends.hip.device",
    "METAL": "tilewright.backends.metal.device",
    "NULL": "tilewright.backends.null.device",
    "OPENCL": "tilewright.backends.opencl.device",
    "PYTHON": "tilewright.backends.python.driver",
    "WEBGPU": "tilewright.backends.webgpu.device",
}

# Devices that are named with a path.
FILE_DEVICES = frozenset({"DISK"})


def opener(module_name: str) -> Callable[[str], Driver]:
    def open_device(name: str) -> Driver:
        driver = importlib.import_module(module_name).open_device(name)
        assert isinstance(driver, Driver)
        return driver

    return open_device
