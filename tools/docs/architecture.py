"""docs/architecture.md and its picture. In: the imports of every file of the package, and the stages' lists of passes.
Out: the page, and an SVG of the folders with an arrow from each to what it imports.

The picture leaves out an arrow where a longer way leads to the same folder; the table below it has all of them."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from typing import Any

from tests.meta.test_imports import FILES, PACKAGE, folder_of, imported_modules
from tilewright.codegen import pipeline as codegen
from tilewright.graph.passes import Pass
from tilewright.kernel import optimise as kernel
from tilewright.kernel.templates.cores import CORE_TEMPLATES
from tilewright.kernel.templates.groups import GROUP_TEMPLATES
from tilewright.kernel.templates.template import Template
from tilewright.schedule import pipeline as schedule
from tools.docs import ROOT

PAGE = ROOT / "docs" / "architecture.md"
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 118, 40, 26, 48, 20
STYLE = """\
  <style>
    rect { fill: #eef3f8; stroke: #4a6a8a; }
    text { font: 13px sans-serif; fill: #1c2a38; text-anchor: middle; }
    path { fill: none; stroke: #7a8a9a; marker-end: url(#arrow); }
  </style>
  <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
    <polygon points="0,0 8,4 0,8" fill="#7a8a9a"/>
  </marker>"""

Graph = dict[str, frozenset[str]]  # a folder, and the folders that it imports


# ---------------------------------------------------------------- imports


def read_imports() -> Graph:
    """Who imports whom, by the files of the package. What stands in the package itself counts by its own name."""
    found: dict[str, set[str]] = {}
    for path in FILES:
        folder = folder_of(path)
        if folder.startswith("__"):
            continue
        own = found.setdefault(folder, set())
        for _, target in imported_modules(path.read_text(), path):
            if target[0] == "tilewright" and len(target) > 1 and is_folder(target[1]) and target[1] != folder:
                own.add(target[1])
    return {folder: frozenset(imported) for folder, imported in sorted(found.items())}


def is_folder(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def label_of(folder: str) -> str:
    return f"{folder}/" if (PACKAGE / folder).is_dir() else f"{folder}.py"


def direct_imports(graph: Graph) -> Graph:
    """The arrows that no longer way stands for: the transitive reduction."""

    @functools.cache
    def reachable(folder: str) -> frozenset[str]:
        return graph[folder].union(*(reachable(other) for other in graph[folder]))

    return {
        folder: frozenset(other for other in imported if not any(other in reachable(way) for way in imported - {other}))
        for folder, imported in graph.items()
    }


def heights_of(graph: Graph) -> dict[str, int]:
    """The length of the longest chain of imports below each folder."""

    @functools.cache
    def height(folder: str) -> int:
        return 1 + max((height(other) for other in graph[folder]), default=-1)

    return {folder: height(folder) for folder in graph}


# ---------------------------------------------------------------- the picture


class Layout:
    """Where the boxes are. Rows are those of `heights_of`, the highest first. An arrow that passes a row has a point of
    its own there, so that it goes between boxes; points and boxes of a row are ordered by what they hang from."""

    def __init__(self, graph: Graph) -> None:
        self.heights = heights_of(graph)
        top = max(self.heights.values())
        self.rows: list[list[str]] = [[] for _ in range(top + 1)]
        for folder, height in self.heights.items():
            self.rows[top - height].append(folder)
        self.chains: list[list[str]] = []
        for folder, imported in direct_imports(graph).items():
            for other in sorted(imported):
                passed = range(top - self.heights[folder] + 1, top - self.heights[other])
                points = [f"{folder} to {other} in row {row}" for row in passed]
                for row, point in zip(passed, points):
                    self.rows[row].append(point)
                self.chains.append([folder, *points, other])
        self.is_box = set(graph)
        self.links = [pair for chain in self.chains for pair in itertools.pairwise(chain)]
        self.centres: dict[str, float] = {}
        for _ in range(4):
            self.place()
            for row in self.rows:
                row.sort(key=self.pull)
        self.place()

    def width(self, name: str) -> int:
        return BOX_WIDTH if name in self.is_box else GAP_X

    def row_width(self, row: list[str]) -> int:
        return sum(self.width(name) + GAP_X for name in row) - GAP_X

    def place(self) -> None:
        """Each row side by side, around the middle."""
        widest = max(map(self.row_width, self.rows))
        for row in self.rows:
            left = MARGIN + (widest - self.row_width(row)) / 2
            for name in row:
                self.centres[name] = left + self.width(name) / 2
                left += self.width(name) + GAP_X

    def pull(self, name: str) -> float:
        """The mean position of what the arrows of a box or point lead to and come from."""
        linked = [first if second == name else second for first, second in self.links if name in (first, second)]
        return sum(self.centres[other] for other in linked) / len(linked)

    def top_of(self, name: str) -> float:
        row = next(number for number, row in enumerate(self.rows) if name in row)
        return MARGIN + row * (BOX_HEIGHT + GAP_Y)


def draw_imports(graph: Graph) -> str:
    """A box per folder, and an arrow from it to each folder that it imports."""
    layout = Layout(graph)
    width = max(map(layout.row_width, layout.rows)) + 2 * MARGIN
    height = len(layout.rows) * (BOX_HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">', STYLE]
    lines += [arrow(layout, chain) for chain in layout.chains]
    for folder in graph:
        lines += box(folder, layout.centres[folder], layout.top_of(folder))
    return "\n".join([*lines, "</svg>"]) + "\n"


def arrow(layout: Layout, chain: list[str]) -> str:
    """From the lower edge of a box to the upper edge of another; it is upright where it meets a row."""
    text = f"M {layout.centres[chain[0]]:g} {layout.top_of(chain[0]) + BOX_HEIGHT:g}"
    for first, second in itertools.pairwise(chain):
        x1, y1 = layout.centres[first], layout.top_of(first) + BOX_HEIGHT
        x2, y2 = layout.centres[second], layout.top_of(second)
        middle = (y1 + y2) / 2
        text += f" L {x1:g} {y1:g} C {x1:g} {middle:g}, {x2:g} {middle:g}, {x2:g} {y2:g}"
    return f'  <path d="{text}"/>'


def box(folder: str, centre: float, top: float) -> list[str]:
    return [
        f'  <rect x="{centre - BOX_WIDTH / 2:g}" y="{top:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6"/>',
        f'  <text x="{centre:g}" y="{top + BOX_HEIGHT / 2 + 5:g}">{label_of(folder)}</text>',
    ]


# ---------------------------------------------------------------- the page


def import_table(graph: Graph) -> str:
    """All imports between folders, from the top of the picture to its bottom."""
    heights = heights_of(graph)
    lines = ["| folder | imports |", "|---|---|"]
    for folder in sorted(graph, key=lambda folder: (-heights[folder], folder)):
        imported = ", ".join(sorted(graph[folder])) or "the standard library alone"
        lines.append(f"| {label_of(folder)} | {imported} |")
    return "\n".join(lines)


def pass_table(passes: Iterable[Pass[Any]]) -> str:
    """The passes of a stage in their order, as its list states them."""
    lines = ["| pass | needs | gives | |", "|---|---|---|---|"]
    for step in passes:
        lines.append(f"| `{step.name}` | {step.needs} | {step.gives} | {'optional' if step.is_optional else ''} |")
    return "\n".join(lines)


def template_table(templates: Iterable[Template]) -> str:
    """The templates in the order in which they are tried."""
    lines = ["| template | kernels |", "|---|---|"]
    return "\n".join([*lines, *(f"| {template.name} | {template.kernels} |" for template in templates)])


def fill(page: str, parts: dict[str, str]) -> str:
    """The page with each generated part between its two comments: `<!-- name -->` and `<!-- end of name -->`."""
    for name, text in parts.items():
        pattern = rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end of {re.escape(name)} -->)"
        found = re.findall(pattern, page, flags=re.DOTALL)
        if len(found) != 1:
            raise ValueError(f"{PAGE.name} does not have the comments of {name!r} once")
        page = re.sub(pattern, lambda match, text=text: f"{match[1]}{text}\n{match[2]}", page, flags=re.DOTALL)
    return page


def architecture_pages() -> dict[str, str]:
    """The page, whose generated parts are filled in, and its picture."""
    graph = read_imports()
    parts = {
        "imports": import_table(graph),
        "passes of schedule": pass_table(schedule.PASSES),
        "passes of kernel": pass_table(kernel.PASSES),
        "passes of codegen": pass_table(codegen.PASSES),
        "templates for cores": template_table(CORE_TEMPLATES),
        "templates for work-groups": template_table(GROUP_TEMPLATES),
    }
    return {"docs/architecture.md": fill(PAGE.read_text(), parts), "docs/architecture.svg": draw_imports(graph)}
