"""`tilewright devices`. In: what `Device.availability()` says. Out: a table with a row per device: whether it can be
used here, what it needs where it cannot, and the memory hierarchy of one that runs on the host's cores, as kernels are
made for it. Stands behind `main`, before `runtime/device`."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from tilewright.base.target import Target
from tilewright.runtime.device import Device, open_driver


def devices_table() -> Table:
    default = Device.DEFAULT
    table = Table(box=None, pad_edge=False)
    for heading in ("device", "usable", "needs or has"):
        table.add_column(heading, overflow="fold")
    for name, reason in Device.availability().items():
        usable = "yes" if reason is None else "no"
        target = None if reason else open_driver(name).target
        # A device that runs on another one's target has nothing of its own to tell.
        has = describe_memory(target) if target and target.has_threads and target.name == name else ""
        table.add_row(name, f"{usable}, default" if name == default else usable, escape(reason or has))
    return table


def describe_memory(target: Target) -> str:
    line, page, first, own, shared = map(
        in_bytes, (target.line_bytes, target.page_bytes, target.l1_bytes, target.core_cache_bytes, target.cache_bytes)
    )
    return (
        f"{target.cores} cores, lines of {line}, pages of {page}, L1 of {first} in {target.l1_ways} ways, "
        f"{own} of cache a core, {shared} shared, TLB of {target.tlb_entries} pages"
    )


def in_bytes(count: int) -> str:
    """A number of bytes in the largest unit that it is a whole number of."""
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if count and count % (1 << shift) == 0:
            return f"{count >> shift} {unit}"
    return f"{count} B"


__all__ = ["devices_table"]
