"""Writes every generated page whose text has changed: `python -m tools.docs`, or `make docs`. Out: their names."""

from __future__ import annotations

from tools.docs import ROOT
from tools.docs.pages import generated_pages


def main() -> None:
    for name, text in generated_pages().items():
        path = ROOT / name
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {name}")


if __name__ == "__main__":
    main()
