"""`tilewright cache`. In: the options of the disk cache. Out: where compiled programs lie, how many and how large, as
text; or the text that says they are removed. Stands behind `main`, before `runtime/cache_limit`."""

from __future__ import annotations

from tilewright.base.config import options
from tilewright.runtime.cache import cache_folder
from tilewright.runtime.cache_limit import MEGABYTE, clear, entries


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


__all__ = ["clear_cache", "describe_cache"]
