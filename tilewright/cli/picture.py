"""The roofline as a picture. In: a `Report`. Out: a PNG: operations a byte across and operations a second up, both in
powers of ten, the two roofs, and a dot per kernel, the larger the more time it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tilewright.base.errors import UnsupportedError
from tilewright.cli.peaks import Peaks
from tilewright.cli.roofline import Report, Row
from tilewright.debug import describe

LABELS = 6  # the kernels that lose most are named
SMALLEST_DOT, LARGEST_DOT = 12.0, 500.0
COLOURS = {"arithmetic": "#c0392b", "memory": "#2471a3"}
LOWEST_INTENSITY = 1e-2  # kernels without arithmetic are drawn at the left edge


def check_plotting() -> None:
    """Raises where pictures cannot be made, before anything is measured for one."""
    _figure()


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UnsupportedError(
            "bench --plot", "matplotlib is not installed", "pip install 'tilewright[plot]'"
        ) from error
    return Figure(figsize=(9, 6), dpi=120, layout="constrained")


def save_roofline(report: Report, path: Path) -> None:
    figure = _figure()
    axes = figure.add_subplot()
    axes.set_xscale("log")
    axes.set_yscale("log")
    left, right = _span(report)
    for device, peaks in report.peaks.items():
        _draw_roofs(axes, device, peaks, left, right)
    longest = max((row.seconds for row in report.rows), default=0.0)
    for row in report.rows:
        if row.seconds > 0:
            size = SMALLEST_DOT + LARGEST_DOT * row.seconds / longest
            axes.scatter(*_point(row), s=size, c=COLOURS[row.bound], alpha=0.55, edgecolors="black", linewidths=0.5)
    if report.rows:
        _label(axes, report.rows[:LABELS])
    axes.set_xlim(left, right)
    axes.set_xlabel("arithmetic intensity, FLOP a byte")
    axes.set_ylabel("FLOP a second")
    total = report.total
    axes.set_title(f"{total.count} kernels, {describe.show_seconds(total.seconds)}, {total.share:.0%} of the roof")
    axes.grid(True, which="major", alpha=0.3)
    figure.savefig(path, format="png")


def _point(row: Row) -> tuple[float, float]:
    """The intensity and rate of a kernel. Without arithmetic it is drawn at the left edge, as high as its bytes would
    be."""
    intensity = max(row.intensity, LOWEST_INTENSITY)
    return intensity, max(row.operation_rate, intensity * row.byte_rate)


def _span(report: Report) -> tuple[float, float]:
    """From the left of every kernel and ridge to the right of them."""
    intensities = [_point(row)[0] for row in report.rows] + [p.operations / p.bandwidth for p in report.peaks.values()]
    return min(intensities) / 3, max(intensities) * 10


def _draw_roofs(axes: Any, device: str, peaks: Peaks, left: float, right: float) -> None:
    ridge = peaks.operations / peaks.bandwidth
    axes.plot([left, ridge], [left * peaks.bandwidth, peaks.operations], color=COLOURS["memory"])
    axes.plot([ridge, right], [peaks.operations, peaks.operations], color=COLOURS["arithmetic"])
    near = {"textcoords": "offset points", "xytext": (-4, 5), "ha": "right", "fontsize": 9}
    axes.annotate(f"{device} {peaks.operations / 1e9:.0f} GFLOP/s", (right, peaks.operations), **near)
    middle = (left * ridge) ** 0.5
    axes.annotate(f"{device} {peaks.bandwidth / 1e9:.1f} GB/s", (middle, middle * peaks.bandwidth), **near)


def _label(axes: Any, rows: tuple[Row, ...]) -> None:
    """A number in each dot, and a legend of the numbers in a corner."""
    for number, row in enumerate(rows):
        axes.annotate(str(number + 1), _point(row), ha="center", va="center", fontsize=9, fontweight="bold")
    lines = [
        f"{number + 1}  {row.name}  {row.location}  loses {describe.show_seconds(row.loss_seconds)}"
        for number, row in enumerate(rows)
    ]
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "#cccccc"}
    corner = {"transform": axes.transAxes, "ha": "right", "va": "bottom", "ma": "left", "fontsize": 8, "bbox": box}
    axes.text(0.985, 0.02, "\n".join(lines), **corner)
