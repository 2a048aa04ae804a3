"""Pools, normalisations, depthwise windows, gathers, copies, reductions and casts, one by one, beside torch where it is
installed: `python -m bench.memory_bound [parts of names] [--again]`. In: layers that read and write each element
about once, forward and with their gradients. Out: per row the best time, the bytes that have to move (what is given and
what comes out, once each) over it, the part of this machine's bandwidth that this is, and torch's best and median time
over ours. Values are compared with torch's. The two take turns in one process, so ratios hold on a busy machine."""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilewright import Tensor, jit
from tilewright.cli.peaks import machine_peaks

LARGE, SMALL = (16, 64, 112, 112), (8, 256, 14, 14)
FEWEST_TURNS = 5
# A turn begins with a call that is not counted: threads of the other have to sleep first, and ours to wake.
TURN_SECONDS = 5e-3


class Row(NamedTuple):
    """`targets` of the inputs, from the first on, are differentiated by. A row that depends on values is not jitted."""

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    inputs: tuple[np.ndarray, ...]
    targets: int = 0
    moved: int | None = None
    is_jitted: bool = True
    is_random: bool = False


class Rows:
    """The table. Inputs are made when a row is measured: together they would fill the memory."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.functional: Any = torch.nn.functional if torch else None
        self.generator = np.random.default_rng(0)

    def floats(self, *shape: int) -> np.ndarray:
        return self.generator.standard_normal(shape, dtype=np.float32)

    def makers(self) -> dict[str, Callable[[], Row]]:
        """A name and how its row is made."""
        found: dict[str, Callable[[], Row]] = {}
        for table in (self.pools, self.depthwise, self.normalisations, self.gathers, self.copies, self.reductions):
            found |= table()
        return found

    # ------------------------------------------------------------ windows

    def pools(self) -> dict[str, Callable[[], Row]]:
        f = self.functional
        functions: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
            "max pool 2x2": (lambda x: x.max_pool2d((2, 2)), lambda x: f.max_pool2d(x, 2)),
            "max pool 3x3/2": (
                lambda x: x.max_pool2d((3, 3), stride=2, padding=1),
                lambda x: f.max_pool2d(x, 3, 2, 1),
            ),
            "average pool 2x2": (lambda x: x.avg_pool2d((2, 2)), lambda x: f.avg_pool2d(x, 2)),
            "average pool 3x3/1": (lambda x: x.avg_pool2d((3, 3), stride=1), lambda x: f.avg_pool2d(x, 3, 1)),
            "global average pool": (lambda x: x.mean((2, 3)), lambda x: f.adaptive_avg_pool2d(x, 1).flatten(1)),
            "adaptive pool 7x7": (
                lambda x: x.avg_pool2d((x.shape[2] // 7, x.shape[3] // 7)),
                lambda x: f.adaptive_avg_pool2d(x, 7),
            ),
        }
        return self.both_ways(functions, lambda shape: (self.floats(*shape),), 1)

    def depthwise(self) -> dict[str, Callable[[], Row]]:
        found: dict[str, Callable[[], Row]] = {}
        for size, step in ((3, 1), (3, 2), (5, 1)):

            def ours(x: Tensor, w: Tensor, size: int = size, step: int = step) -> Tensor:
                return x.conv2d(w, groups=x.shape[1], stride=step, padding=size // 2)

            def theirs(x: Any, w: Any, size: int = size, step: int = step) -> Any:
                return self.functional.conv2d(x, w, groups=x.shape[1], stride=step, padding=size // 2)

            found |= self.both_ways(
                {f"depthwise {size}x{size}/{step}": (ours, theirs)},
                lambda shape, size=size: (self.floats(*shape), self.floats(shape[1], 1, size, size)),  # type: ignore[misc]
                2,
            )
        return found

    def both_ways(
        self,
        functions: dict[str, tuple[Callable[..., Any], Callable[..., Any]]],
        inputs: Callable[[tuple[int, ...]], tuple[np.ndarray, ...]],
        targets: int,
    ) -> dict[str, Callable[[], Row]]:
        """Forward alone, and with gradients, of large images and of small ones."""
        found: dict[str, Callable[[], Row]] = {}
        for name, (ours, theirs) in functions.items():
            for shape in (LARGE, SMALL):
                for count in (0, targets):
                    whole = f"{name} {'x'.join(map(str, shape))}{' and gradients' if count else ''}"

                    def make(
                        whole: str = whole,
                        ours: Callable[..., Any] = ours,
                        theirs: Callable[..., Any] = theirs,
                        shape: tuple[int, ...] = shape,
                        count: int = count,
                    ) -> Row:
                        return Row(whole, ours, theirs, inputs(shape), count)

                    found[whole] = make
        return found

    # ------------------------------------------------------------ normalisations

    def normalisations(self) -> dict[str, Callable[[], Row]]:
        f = self.functional

        def parameters(shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
            return self.floats(*shape), self.floats(shape[1]), self.floats(shape[1])

        def running(shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
            return *parameters(shape), self.floats(shape[1]), np.square(self.floats(shape[1])) + 1

        def rows(shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
            width = shape[0] * shape[1]
            return self.floats(int(np.prod(shape)) // width, width), self.floats(width), self.floats(width)

        def group_norm(groups: int) -> Callable[..., Tensor]:
            def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
                count = groups or x.shape[1]
                form = (1, -1, 1, 1)
                return x.reshape(x.shape[0], count, -1).layernorm(-1).reshape(x.shape) * w.reshape(form) + b.reshape(
                    form
                )

            return norm

        def batch_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            variance, mean = x.var_mean((0, 2, 3), correction=0)
            return x.batchnorm(w, b, mean, (variance + 1e-5).rsqrt())

        found = self.both_ways(
            {
                "batch norm": (batch_norm, lambda x, w, b: f.batch_norm(x, None, None, w, b, training=True)),
                "group norm": (group_norm(8), lambda x, w, b: f.group_norm(x, 8, w, b)),
                "instance norm": (group_norm(0), lambda x, w, b: f.instance_norm(x, None, None, w, b)),
            },
            parameters,
            3,
        )
        found |= self.both_ways(
            {
                "batch norm of inference": (
                    lambda x, w, b, m, v: x.batchnorm(w, b, m, (v + 1e-5).rsqrt()),
                    lambda x, w, b, m, v: f.batch_norm(x, m, v, w, b, training=False),
                )
            },
            running,
            3,
        )
        found |= self.both_ways(
            {
                "RMS norm of rows,": (
                    lambda x, w, b: x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w + b,
                    lambda x, w, b: f.rms_norm(x, w.shape, w, 1e-6) + b,
                ),
                "layer norm of rows,": (
                    lambda x, w, b: x.layernorm() * w + b,
                    lambda x, w, b: f.layer_norm(x, w.shape, w, b),
                ),
            },
            rows,
            3,
        )
        return found

    # ------------------------------------------------------------ gathers and copies

    def gathers(self) -> dict[str, Callable[[], Row]]:
        f, million = self.functional, 1 << 20

        def table(name: str, ours: Callable[..., Any], theirs: Callable[..., Any], targets: int = 0) -> Row:
            chosen = self.generator.integers(0, 50000, 4096)
            moved = (2 * 4096 + targets * (50000 + 4096)) * 768 * 4 + chosen.nbytes
            return Row(name, ours, theirs, (self.floats(50000, 768), chosen), targets, moved)

        def last(name: str, ours: Callable[..., Any], theirs: Callable[..., Any], shape: tuple[int, ...]) -> Row:
            places = self.generator.integers(0, 1024, shape)
            count = 4096 * shape[-1]
            return Row(name, ours, theirs, (self.floats(4096, 1024), places), 0, count * 8 + places.nbytes)

        def masked(name: str) -> Row:
            values, mask = self.floats(4 * million), self.generator.random(4 * million) < 0.5
            moved = values.nbytes + mask.nbytes + int(mask.sum()) * 4
            inputs = (values, mask)
            return Row(name, lambda x, m: x[m], lambda x, m: x[m], inputs, 0, moved, is_jitted=False)

        return {
            "embedding": lambda: table("embedding", lambda t, i: t[i], lambda t, i: f.embedding(i, t)),
            "embedding and gradients": lambda: table(
                "embedding and gradients", lambda t, i: t[i], lambda t, i: f.embedding(i, t), 1
            ),
            "index_select of the last axis": lambda: last(
                "index_select of the last axis", lambda t, i: t[:, i], lambda t, i: t.index_select(1, i), (512,)
            ),
            "gather along the last axis": lambda: last(
                "gather along the last axis", lambda t, i: t.gather(1, i), lambda t, i: t.gather(1, i), (4096, 512)
            ),
            "masked select": lambda: masked("masked select"),
        }

    def copies(self) -> dict[str, Callable[[], Row]]:
        torch = self.torch
        images, square = (64, 32, 56, 56), (2048, 4096)
        bits: Any = {"bfloat16": None, "int8": None}
        if torch:
            bits = {"bfloat16": torch.bfloat16, "int8": torch.int8}
        table: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[int, ...]]] = {
            "roll": (lambda x: x.roll(3, 1), lambda x: x.roll(3, 1), square),
            "roll of rows": (lambda x: x.roll(3, 0), lambda x: x.roll(3, 0), square),
            "flip of the last axis": (lambda x: x.flip(1).contiguous(), lambda x: x.flip(1), square),
            "flip of rows": (lambda x: x.flip(0).contiguous(), lambda x: x.flip(0), square),
            "cat of columns": (lambda x: x.cat(x + 1, dim=1), lambda x: torch.cat((x, x + 1), 1), square),
            "cat of rows": (lambda x: x.cat(x, dim=0), lambda x: torch.cat((x, x), 0), square),
            "pad of images": (
                lambda x: x.pad((1, 1, 1, 1)).contiguous(),
                lambda x: self.functional.pad(x, (1, 1, 1, 1)),
                images,
            ),
            "repeat": (lambda x: x.repeat(2, 2).contiguous(), lambda x: x.repeat(2, 2), square),
            "repeat interleaved": (
                lambda x: x.repeat_interleave(2, 1).contiguous(),
                lambda x: x.repeat_interleave(2, 1),
                square,
            ),
            "to bfloat16": (lambda x: x.cast("bfloat16"), lambda x: x.to(bits["bfloat16"]), square),
            "to int8": (lambda x: x.cast("int8"), lambda x: x.to(bits["int8"]), square),
        }

        def made(name: str) -> Row:
            ours, theirs, shape = table[name]
            return Row(name, ours, theirs, (self.floats(*shape),))

        def narrow(name: str) -> Row:
            values = (self.floats(*square) * 10).astype(np.int8)
            ours, theirs = (lambda x: x.cast("float32")), (lambda x: x.float())
            if name == "from bfloat16":
                # The bits of numbers: both read them as bfloat16.
                values = (self.floats(*square).view(np.uint32) >> 16).astype(np.uint16)
                ours = lambda x: x.bitcast("bfloat16").cast("float32")  # noqa: E731
                theirs = lambda x: x.view(bits["bfloat16"]).float()  # noqa: E731
            return Row(name, ours, theirs, (values,))

        found: dict[str, Callable[[], Row]] = {name: lambda name=name: made(name) for name in table}  # type: ignore[misc]
        return found | {name: lambda name=name: narrow(name) for name in ("from int8", "from bfloat16")}

    # ------------------------------------------------------------ reductions

    def reductions(self) -> dict[str, Callable[[], Row]]:
        f, torch = self.functional, self.torch
        square, words = (4096, 4096), (512, 32000)

        def drop(x: Tensor) -> Tensor:
            with Tensor.train():
                return x.dropout(0.5)

        table: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[int, ...]]] = {
            "argmax of rows": (lambda x: x.argmax(1), lambda x: x.argmax(1), square),
            "argmax of columns": (lambda x: x.argmax(0), lambda x: x.argmax(0), square),
            "argmax": (lambda x: x.argmax(), lambda x: x.argmax(), square),
            "cumsum of rows": (lambda x: x.cumsum(1), lambda x: x.cumsum(1), square),
            "cumsum of columns": (lambda x: x.cumsum(0), lambda x: x.cumsum(0), square),
            "sort 1M": (lambda x: x.sort(0)[0], lambda x: x.sort(0)[0], (1 << 20,)),
            "softmax of a middle axis": (lambda x: x.softmax(1), lambda x: x.softmax(1), (64, 256, 1024)),
            "log_softmax 32k": (lambda x: x.log_softmax(-1), lambda x: x.log_softmax(-1), words),
            "variance": (lambda x: x.var(), lambda x: x.var(), square),
            "variance of rows": (lambda x: x.var(1), lambda x: x.var(1), square),
            "deviation of columns": (lambda x: x.std(0), lambda x: x.std(0), square),
            "any of rows": (lambda x: (x > 9).any(1), lambda x: (x > 9).any(1), square),
            "all": (lambda x: (x < 9).all(), lambda x: (x < 9).all(), square),
        }

        def made(name: str) -> Row:
            ours, theirs, shape = table[name]
            return Row(name, ours, theirs, (self.floats(*shape),))

        def flags(name: str) -> Row:
            return Row(name, lambda x: x.any(1), lambda x: x.any(1), (np.zeros((4096, 16384), dtype=bool),))

        def entropy(name: str, targets: int) -> Row:
            labels = self.generator.integers(0, words[1], words[0])
            inputs = (self.floats(*words), labels)
            return Row(name, lambda x, y: x.cross_entropy(y), lambda x, y: f.cross_entropy(x, y), inputs, targets)

        found: dict[str, Callable[[], Row]] = {name: lambda name=name: made(name) for name in table}  # type: ignore[misc]
        return found | {
            "any of flags": lambda: flags("any of flags"),
            "softmax of a middle axis and gradients": lambda: made("softmax of a middle axis")._replace(
                name="softmax of a middle axis and gradients", targets=1
            ),
            "cross entropy 32k": lambda: entropy("cross entropy 32k", 0),
            "cross entropy 32k and gradients": lambda: entropy("cross entropy 32k and gradients", 1),
            "dropout": lambda: Row(
                "dropout", drop, lambda x: torch.dropout(x, 0.5, True), (self.floats(*square),), is_random=True
            ),
        }


# ---------------------------------------------------------------- measuring


def our_call(row: Row, upstream: np.ndarray | None) -> Callable[[], tuple[Tensor, ...]]:
    inputs = [Tensor(array, requires_grad=n < row.targets).realize() for n, array in enumerate(row.inputs)]
    weights = [] if upstream is None else [Tensor(upstream).realize()]
    compute, count, targets = row.ours, len(inputs), row.targets

    def results(*given: Tensor) -> tuple[Tensor, ...]:
        out = compute(*given[:count])
        found = (out, *out.gradient(*given[:targets], gradient=given[-1])) if targets else (out,)
        found[0].realize(*found[1:])
        return found

    function = jit(results) if row.is_jitted else results

    def call() -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = function(*inputs, *weights)
        found[0].synchronize()
        return found

    return call


def their_call(torch: Any, row: Row, upstream: np.ndarray | None) -> Callable[[], tuple[Any, ...]]:
    inputs = [torch.from_numpy(array) for array in row.inputs]
    weights = None if upstream is None else torch.from_numpy(upstream)

    def call() -> tuple[Any, ...]:
        leaves = [x.detach().requires_grad_() if n < row.targets else x for n, x in enumerate(inputs)]
        out = row.theirs(*leaves)
        if not row.targets:
            return (out,)
        return (out.detach(), *torch.autograd.grad(out, leaves[: row.targets], weights))

    return call


def check(row: Row, ours: Sequence[Tensor], theirs: Sequence[Any]) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        wanted = other.float().numpy() if other.dtype.is_floating_point else other.numpy()
        found = mine.float().numpy() if mine.dtype.is_float else mine.numpy()
        size = max(1.0, float(np.abs(wanted).max(initial=0)))
        if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=2e-4, atol=2e-4 * size):
            raise AssertionError(f"{row.name}: the values are not torch's")


def take_turn(call: Callable[[], object]) -> list[float]:
    call()
    times: list[float] = []
    while not times or sum(times) < TURN_SECONDS:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def measure(row: Row, torch: Any, seconds: float, bandwidth: float) -> str:
    """A line of the table."""
    shape = our_call(row._replace(targets=0), None)()[0].shape if row.targets else ()
    upstream = np.random.default_rng(1).standard_normal(shape, dtype=np.float32) if row.targets else None
    calls: dict[str, Callable[[], tuple[Any, ...]]] = {"ours": our_call(row, upstream)}
    if torch:
        calls["torch"] = their_call(torch, row, upstream)
    results = {name: [call() for _ in range(3)][-1] for name, call in calls.items()}
    if torch and not row.is_random:
        check(row, results["ours"], results["torch"])
    given = sum(array.nbytes for array in row.inputs) + (upstream.nbytes if upstream is not None else 0)
    moved = row.moved or given + sum(found.nbytes() for found in results["ours"])
    del results
    times: dict[str, list[float]] = {name: [] for name in calls}
    end, turns = time.perf_counter() + seconds, 0
    while turns < FEWEST_TURNS or time.perf_counter() < end:
        turns += 1
        for name, call in calls.items():
            times[name] += take_turn(call)
    best = min(times["ours"])
    rate = moved / best
    text = f"{row.name:52s} {best * 1e3:9.3f} ms {rate / 1e9:6.2f} GB/s {rate / bandwidth:5.2f} of the peak"
    if torch:
        medians = {name: statistics.median(values) for name, values in times.items()}
        text += f"   torch {min(times['torch']) * 1e3:9.3f} ms   ratio {min(times['torch']) / best:5.2f}"
        text += f" median {medians['torch'] / medians['ours']:5.2f}"
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description="kernels that memory bounds, one by one")
    parser.add_argument("parts", nargs="*", help="rows whose names have one of these; all where none is given")
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each row is measured")
    parser.add_argument("--again", action="store_true", help="measure the bandwidth again, if it is known")
    given = parser.parse_args()
    torch: Any = None
    if importlib.util.find_spec("torch") is not None:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        torch = __import__("torch")
    bandwidth = machine_peaks("CPU", given.again).bandwidth
    for name, make in Rows(torch).makers().items():
        if not given.parts or any(part in name for part in given.parts):
            print(measure(make(), torch, given.seconds, bandwidth), flush=True)


if __name__ == "__main__":
    main()
