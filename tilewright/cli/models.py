"""`tilewright models`. In: the registry and the cache folder. Out: a table with a row per model: its name, what it is,
its size, and whether it is on this machine."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from tilewright.llm.registry import DEFAULT, MODELS, cached_path, is_fetched

_MEGABYTE = 1_000_000


def models_table() -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "model", "size", "licence", "fetched"):
        table.add_column(heading, justify="right" if heading == "size" else "left", overflow="fold")
    for model in MODELS.values():
        name = f"{model.name} (default)" if model.name == DEFAULT else model.name
        where = str(cached_path(model)) if is_fetched(model) else "no"
        table.add_row(name, model.title, f"{model.size / _MEGABYTE:,.0f} MB", model.licence, escape(where))
    return table
