"""`tilewright devices` and `tilewright cache`. In: `Device.availability()` and the options of the disk cache. Out: a
table with a row per device (whether it can be used here, what it needs otherwise, the memory hierarchy of one that runs
on the host's cores); and the size of the cache as text, or the text that it was cleared."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from tilewright.base.config import options
from tilewright.base.target import Target
from tilewright.runtime.cache import cache_folder
from tilewright.runtime.cache_limit import MEGABYTE, clear, entries
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
        f"{own} of cache a core, {shared} shared, TLB of {target.tlb_entries} pages, {target.read_streams} read streams"
    )


def in_bytes(count: int) -> str:
    """A number of bytes in the largest unit that it is a whole number of."""
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if count and count % (1 << shift) == 0:
            return f"{count >> shift} {unit}"
    return f"{count} B"


def describe_cache() -> str:
    sizes = [entry.size for entry in entries(cache_folder())]
    limit = f"{options.CACHE_MEGABYTES} MB" if options.CACHE_MEGABYTES else "none"
    lines = {
        "path": cache_folder(),
        "entries": str(len(sizes)),
        "size": _megabytes(sum(sizes)),
        "limit": f"{limit} (CACHE_MEGABYTES)",
        "in use": "yes" if options.CACHE else "no (CACHE=0)",
    }
    return "\n".join(f"{name:8} {value}" for name, value in lines.items())


def clear_cache() -> str:
    return f"{_megabytes(clear(cache_folder()))} removed from {cache_folder()}"


def _megabytes(count: int) -> str:
    return f"{count / MEGABYTE:.1f} MB"
