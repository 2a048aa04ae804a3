"""Pictures for the examples. In: NumPy arrays and lists of numbers. Out: PNG files, written with zlib alone: grids of
images, and plots of curves with axes and a legend."""

from __future__ import annotations

import itertools
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

# A font of 5 by 7: a byte per column, the lowest bit on top.
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz .,-+/%()=:"
_COLUMNS = bytes.fromhex(
    "3e5149453e 00427f4000 4261514946 2141454b31 1814127f10 2745454539 3c4a494930 0171090503 3649494936 064949291e"
    "2054545478 7f48444438 3844444420 384444487f 3854545418 087e090102 0c5252523e 7f08040478 00447d4000 2040443d00"
    "7f10284400 00417f4000 7c04180478 7c08040478 3844444438 7c14141408 081414187c 7c08040408 4854545420 043f444020"
    "3c4040207c 1c2040201c 3c4030403c 4428102844 0c5050503c 4464544c44 0000000000 0060600000 0050300000 0808080808"
    "08083e0808 2010080402 2313086462 001c224100 0041221c00 1414141414 0036360000"
)
COLOURS = ((31, 119, 180), (214, 39, 40), (44, 160, 44), (148, 103, 189))
INK, GREY, PAPER = (40, 40, 40), (222, 222, 222), (255, 255, 255)


def save_png(path: str | Path, pixels: np.ndarray) -> Path:
    """Writes a picture of bytes: (height, width) in grey or (height, width, 3) in colour."""
    pixels = np.ascontiguousarray(pixels, dtype=np.uint8)
    height, width = pixels.shape[:2]
    kind = 2 if pixels.ndim == 3 else 0
    rows = np.zeros((height, 1 + pixels[0].size), dtype=np.uint8)  # each row begins with the number of its filter, 0
    rows[:, 1:] = pixels.reshape(height, -1)

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)) + chunk(b"IEND", b"")
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"\x89PNG\r\n\x1a\n" + body)
    return target


def image_grid(images: np.ndarray, columns: int, scale: int = 2, gap: int = 2) -> np.ndarray:
    """Images of (count, height, width) with values 0..1, laid out in rows, white on black."""
    count, height, width = images.shape
    rows = math.ceil(count / columns)
    sheet = np.full((rows * (height + gap) + gap, columns * (width + gap) + gap), 40, dtype=np.uint8)
    for number, image in enumerate(images):
        top = gap + number // columns * (height + gap)
        left = gap + number % columns * (width + gap)
        sheet[top : top + height, left : left + width] = np.clip(image, 0, 1) * 255
    return sheet.repeat(scale, axis=0).repeat(scale, axis=1)


def plot(
    path: str | Path, title: str, curves: Mapping[str, Sequence[tuple[float, float]]], below: str = "step"
) -> Path:
    """Curves of (x, y) points in one picture of 720 by 440."""
    sheet = np.full((440, 720, 3), PAPER, dtype=np.uint8)
    left, right, top, bottom = 80, 700, 40, 390
    points = [point for curve in curves.values() for point in curve if math.isfinite(point[1])]
    x_low, x_high = _span([x for x, _ in points])
    y_low, y_high = _span([y for _, y in points])

    def place(x: float, y: float) -> tuple[float, float]:
        across = left + (x - x_low) / (x_high - x_low) * (right - left)
        return across, bottom - (y - y_low) / (y_high - y_low) * (bottom - top)

    for x in _ticks(x_low, x_high):
        across = round(place(x, y_low)[0])
        sheet[top:bottom, across] = GREY
        _write(sheet, f"{x:g}", across, bottom + 10, anchor=0.5)
    for y in _ticks(y_low, y_high):
        down = round(place(x_low, y)[1])
        sheet[down, left:right] = GREY
        _write(sheet, f"{y:g}", left - 8, down - 7, anchor=1.0)
    sheet[top:bottom, left], sheet[bottom, left:right] = INK, INK
    _write(sheet, title, (left + right) // 2, 12, anchor=0.5)
    _write(sheet, below, right, bottom + 28, anchor=1.0)
    for number, (name, curve) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        _draw(sheet, [place(x, y) for x, y in curve if math.isfinite(y)], colour)
        _write(sheet, name, right - 8, top + 8 + 20 * number, anchor=1.0, colour=colour)
    return save_png(path, sheet)


def smooth(values: Sequence[float], window: int = 20) -> list[tuple[float, float]]:
    """Numbered points of the mean over the last `window` values."""
    return [
        (number + 1, float(np.mean(values[max(0, number + 1 - window) : number + 1]))) for number in range(len(values))
    ]


def _span(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    return (low - 0.5, high + 0.5) if high - low < 1e-12 else (low, high)


def _ticks(low: float, high: float) -> list[float]:
    """About six round numbers between low and high."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 10) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _draw(sheet: np.ndarray, points: Sequence[tuple[float, float]], colour: tuple[int, int, int]) -> None:
    for (x_from, y_from), (x_to, y_to) in itertools.pairwise(points):
        count = int(max(abs(x_to - x_from), abs(y_to - y_from))) + 1
        for share in np.linspace(0, 1, count + 1):
            down, across = round(y_from + (y_to - y_from) * share), round(x_from + (x_to - x_from) * share)
            sheet[down : down + 2, across : across + 2] = colour


def _write(
    sheet: np.ndarray, text: str, across: int, down: int, anchor: float = 0.0, colour: tuple[int, int, int] = INK
) -> None:
    """Small letters of twice the font's size; `anchor` is the share of the text that lies left of `across`."""
    width = 12 * len(text) - 2
    start = max(0, min(round(across - anchor * width), sheet.shape[1] - width - 4))
    for number, letter in enumerate(text.lower()):
        found = _LETTERS.find(letter)
        columns = _COLUMNS[5 * found : 5 * found + 5] if found >= 0 else b"\x7f\x41\x41\x41\x7f"
        for column, bits in enumerate(columns):
            for row in range(7):
                if bits >> row & 1:
                    x, y = start + 12 * number + 2 * column, down + 2 * row
                    sheet[y : y + 2, x : x + 2] = colour
