"""Products of float32 on a card: their error against float64 and their speed, on tensor cores (ALLOW_BF16X6=1), with
FMA (ALLOW_BF16X6=0) and by torch without TF32.

    python -m bench.float32_products [--errors] [--speed] [--only WORD] [--seconds S] [--json FILE]

In: a CUDA device and torch on the same card. Out: two tables. An error is |found - exact| by the sum of |x| * |y| of
its products, in units of 2^-24: the largest and the root of the mean square over all results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.sweep import best_in_turns
from tilewright import Context, Tensor, jit
from tilewright.runtime.device import open_driver

Array = np.ndarray[Any, Any]
LENGTHS = (16, 64, 100, 512, 4096, 65536)
SIDE = 256
SETTINGS = {"x6": 1, "fma": 0}
UNIT = 2.0**-24


# ---------------------------------------------------------------- errors


def _normal(random: np.random.Generator, shape: tuple[int, int]) -> Array:
    return random.standard_normal(shape)


def _positive(random: np.random.Generator, shape: tuple[int, int]) -> Array:
    return random.random(shape)


def _mixed(random: np.random.Generator, shape: tuple[int, int]) -> Array:
    return random.standard_normal(shape) * 10.0 ** random.uniform(-8, 8, shape)


def _mirrored(matrix: Array, is_left: bool) -> Array:
    """The second half of the sum takes away almost all of the first one."""
    half = matrix.shape[1 if is_left else 0] // 2
    made = matrix.copy()
    if is_left:
        made[:, half : 2 * half] = -matrix[:, :half] * (1 + 1e-5)
    else:
        made[half : 2 * half] = matrix[:half]
    return made


Draw = Callable[[np.random.Generator, int], tuple[Array, Array]]


def _scaled(draw: Callable[..., Array], left: float = 1.0, right: float = 1.0) -> Draw:
    return lambda random, k: (draw(random, (SIDE, k)) * left, draw(random, (k, SIDE)) * right)


DATA: dict[str, Draw] = {
    "normal": _scaled(_normal),
    "positive": _scaled(_positive),
    "mixed magnitudes": _scaled(_mixed),
    "cancelling": lambda random, k: (
        _mirrored(_normal(random, (SIDE, k)), True),
        _mirrored(_normal(random, (k, SIDE)), False),
    ),
    "1e-37 by 1e30": _scaled(_normal, 1e-37, 1e30),
    "denormal by 1e30": _scaled(_normal, 1e-41, 1e30),
    "1e-19 by 1e-19": _scaled(_normal, 1e-19, 1e-19),
    "1e14 by 1e10": _scaled(_normal, 1e14, 1e10),
    "1e20 by 1e14": _scaled(_normal, 1e20, 1e14),
    "3e38 by 0.3": _scaled(_positive, 3e38, 0.3),
}


def errors_of(found: Array, exact: Array, size: Array) -> tuple[float, float]:
    """Results below the normal numbers are exact to one denormal step, whatever their size."""
    with np.errstate(all="ignore"):
        error = np.abs(found.astype(np.float64) - exact) / np.maximum(size, 2.0**-126) / UNIT
    error = np.where(np.isfinite(exact.astype(np.float32)), error, 0)
    return float(error.max()), float(np.sqrt((error * error).mean()))


def measure_errors(only: str) -> list[dict[str, Any]]:
    import torch

    rows = []
    for name, draw in DATA.items():
        for length in LENGTHS:
            if only not in name or (name == "3e38 by 0.3" and length > 512):
                continue
            left, right = (each.astype(np.float32) for each in draw(np.random.default_rng(length), length))
            theirs = [torch.from_numpy(each).cuda() for each in (left, right)]
            exact = (theirs[0].double() @ theirs[1].double()).cpu().numpy()
            size = (theirs[0].double().abs() @ theirs[1].double().abs()).cpu().numpy()
            row: dict[str, Any] = {"data": name, "k": length}
            row["torch"] = errors_of((theirs[0] @ theirs[1]).cpu().numpy(), exact, size)
            for setting, allowed in SETTINGS.items():
                with Context(ALLOW_BF16X6=allowed, DEVICE="CUDA"):
                    found = (Tensor(left) @ Tensor(right)).numpy()
                row[setting] = errors_of(found, exact, size)
            rows.append(row)
            texts = (f"{kind} {row[kind][0]:9.3f} {row[kind][1]:8.4f}" for kind in ("x6", "fma", "torch"))
            print(f"{name:18} {length:6}  {'  '.join(texts)}", flush=True)
    return rows


# ---------------------------------------------------------------- speed


@dataclass(frozen=True)
class Row:
    """`work` is the number of multiplications and additions; functions take ours or torch's tensors."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    work: float


def _product(m: int, k: int, n: int, batch: int = 0) -> Row:
    around = (batch,) if batch else ()
    name = f"{f'{batch} x ' if batch else ''}{m}x{k}x{n}"
    return Row(name, ((*around, m, k), (*around, k, n)), _multiply, _multiply, 2 * m * k * n * max(batch, 1))


def _multiply(x: Any, y: Any) -> Any:
    return x @ y


def _gradients(rows: int, inputs: int, outputs: int) -> Row:
    def ours(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        return tuple((x @ w).square().sum().gradient(x, w))

    def theirs(x: Any, w: Any) -> Any:
        import torch

        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        return torch.autograd.grad((x @ w).square().sum(), (x, w))

    return Row(
        f"gradients {rows}x{inputs}x{outputs}",
        ((rows, inputs), (inputs, outputs)),
        ours,
        theirs,
        6 * rows * inputs * outputs,
    )


def _convolution(b: int, c: int, size: int, o: int, kernel: int, stride: int = 1) -> Row:
    import torch

    pad = kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    return Row(
        f"conv {b}x{c}x{size}x{size} {o} {kernel}x{kernel}/{stride}",
        ((b, c, size, size), (o, c, kernel, kernel)),
        lambda x, w: x.conv2d(w, padding=pad, stride=stride),
        lambda x, w: torch.nn.functional.conv2d(x, w, padding=pad, stride=stride),
        2 * b * o * out * out * c * kernel * kernel,
    )


def _attention(batch: int, heads: int, time: int, features: int, is_causal: bool = False) -> Row:
    import torch

    shape = (batch, heads, time, features)
    return Row(
        f"attention {'x'.join(map(str, shape))}{' causal' if is_causal else ''}",
        (shape,) * 3,
        lambda q, k, v: q.scaled_dot_product_attention(k, v, is_causal=is_causal),
        lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal),
        4 * batch * heads * time * time * features,
    )


def _attention_gradients(batch: int, heads: int, time: int, features: int, is_causal: bool = False) -> Row:
    """The gradients with the forward pass that they need, as a training step has them."""
    import torch

    forward = _attention(batch, heads, time, features, is_causal)

    def ours(*given: Tensor) -> tuple[Tensor, ...]:
        given = tuple(each.detach().requires_grad_() for each in given)
        return tuple(forward.ours(*given).gradient(*given, gradient=given[1].detach()))

    def theirs(*given: Any) -> Any:
        given = tuple(each.detach().requires_grad_() for each in given)
        return torch.autograd.grad(forward.theirs(*given), given, given[1].detach())

    return Row(f"gradients of {forward.name}", forward.shapes, ours, theirs, 3.5 * forward.work)


def speed_rows() -> list[Row]:
    return [
        *(_product(size, size, size) for size in (256, 512, 700, 1024, 1500, 2048, 3000, 4096, 8192)),
        _product(4000, 3333, 2222),
        _product(1001, 999, 1003),
        _product(16, 4096, 4096),
        _product(64, 8192, 8192),
        _product(8192, 64, 8192),
        _product(4096, 32, 4096),
        _product(512, 65536, 512),
        _product(1024, 64, 1024, 96),
        _product(197, 64, 197, 96),
        _product(512, 512, 512, 32),
        _gradients(8192, 1024, 4096),
        _convolution(32, 64, 56, 64, 3),
        _convolution(32, 128, 28, 128, 3),
        _convolution(32, 64, 56, 256, 1),
        _convolution(32, 96, 112, 96, 3, 2),
        _attention(8, 12, 1024, 64),
        _attention(4, 16, 2048, 128),
        _attention(8, 12, 1024, 64, True),
        _attention(8, 12, 197, 64),
        _attention(4, 12, 1000, 80),
        _attention(2, 16, 2048, 128, True),
        _attention_gradients(8, 12, 1024, 64),
        _attention_gradients(8, 12, 1024, 64, True),
        _attention_gradients(4, 16, 1024, 128),
        _attention_gradients(8, 12, 197, 64),
    ]


def measure_speed(only: str, seconds: float) -> list[dict[str, Any]]:
    import torch

    random, rows, driver = np.random.default_rng(7), [], open_driver("CUDA")
    for row in speed_rows():
        if only not in row.name:
            continue
        arrays = [(random.standard_normal(shape) / shape[-1] ** 0.25).astype(np.float32) for shape in row.shapes]
        theirs = [torch.from_numpy(each).cuda() for each in arrays]
        exact = _numbers(row.theirs(*(each.double() for each in theirs)))
        found: dict[str, Any] = {
            "row": row.name,
            "work": row.work,
            "torch_error": _error(_numbers(row.theirs(*theirs)), exact),
        }
        calls: dict[str, Any] = {"torch": (lambda row=row, theirs=theirs: row.theirs(*theirs), torch.cuda.synchronize)}
        ours = [Tensor(each, device="CUDA").realize() for each in arrays]
        for setting, allowed in SETTINGS.items():
            call = jit(row.ours)

            def run(call: Any = call, allowed: int = allowed, ours: Any = ours) -> Any:
                with Context(ALLOW_BF16X6=allowed, DEVICE="CUDA"):
                    return call(*ours)

            for _ in range(3):
                results = run()
            listed = results if isinstance(results, tuple) else (results,)
            found[f"{setting}_error"] = _error([each.numpy().astype(np.float64) for each in listed], exact)
            calls[setting] = (run, driver.synchronize)
        best = best_in_turns(calls, seconds)
        found |= {f"{name}_ms": 1e3 * took for name, took in best.items()}
        rows.append(found)
        rates = (f"{name} {row.work / took / 1e12:6.1f}" for name, took in best.items())
        wrong = (f"{name} {found[f'{name}_error']:.1e}" for name in ("torch", *SETTINGS))
        times = (f"{1e3 * took:.4f}" for took in best.values())
        print(f"{row.name:34} TFLOP/s {'  '.join(rates)}  ms {' '.join(times)}  error {'  '.join(wrong)}", flush=True)
    return rows


def _numbers(results: Any) -> list[Array]:
    listed = results if isinstance(results, tuple) else (results,)
    return [each.detach().double().cpu().numpy() for each in listed]


def _error(found: list[Array], exact: list[Array]) -> float:
    return max(
        float(np.linalg.norm(one - other) / np.linalg.norm(other)) for one, other in zip(found, exact, strict=True)
    )


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--errors", action="store_true", help="only the errors")
    parser.add_argument("--speed", action="store_true", help="only the speed")
    parser.add_argument("--only", default="", help="part of a row's name")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each row, the libraries in turns")
    parser.add_argument("--json", default="")
    chosen = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    found: dict[str, Any] = {}
    if not chosen.speed:
        found["errors"] = measure_errors(chosen.only)
    if not chosen.errors:
        found["speed"] = measure_speed(chosen.only, chosen.seconds)
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
