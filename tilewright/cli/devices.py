"""`tilewright devices`. In: what `Device.availability()` says. Out: a table with a row per device: whether it can be
used here, and what it needs where it cannot. Stands behind `main`, before `runtime/device`."""

from __future__ import annotations

from rich.table import Table

from tilewright.runtime.device import Device


def devices_table() -> Table:
    default = Device.DEFAULT
    table = Table(box=None, pad_edge=False)
    for heading in ("device", "usable", "needs"):
        table.add_column(heading, overflow="fold")
    for name, reason in Device.availability().items():
        usable = "yes" if reason is None else "no"
        table.add_row(name, f"{usable}, default" if name == default else usable, reason or "")
    return table


__all__ = ["devices_table"]
