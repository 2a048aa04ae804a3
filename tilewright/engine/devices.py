"""Registers the backends with the runtime. In: `backends.registry`. Out: nothing.
Imported with the package, so that a device name can be checked before any driver is opened."""

from __future__ import annotations

from tilewright.backends.registry import BACKENDS, FILE_DEVICES, opener
from tilewright.runtime.device import register_backend

for _name, _module in BACKENDS.items():
    register_backend(_name, opener(_module), _name in FILE_DEVICES)
