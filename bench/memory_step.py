"""How much memory a training step takes: `python -m bench.memory_step [--steps 4] [--detail]`, beside torch's.

In: the convolutional MNIST network, a batch of 128, Adam. Out: the peak resident size (VmHWM) of a process of ours and
of one of torch's, after the import and after some steps, the ratio of the whole and of what the steps add; exit status
1 where ours is above 1.2 times torch's. `--detail` lists what our peak consists of. Linux alone tells VmHWM."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
BATCH = 128
BAR = 1.2


def peak_bytes() -> int:
    """The most that was resident so far."""
    return _status("VmHWM")


def resident_bytes() -> int:
    return _status("VmRSS")


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"this system does not tell {field}")


def batch() -> tuple[np.ndarray, np.ndarray]:
    numbers = np.random.default_rng(0)
    return numbers.standard_normal((BATCH, 1, 28, 28), dtype=np.float32), numbers.integers(0, 10, BATCH)


# ---------------------------------------------------------------- the two


def our_step() -> Callable[[], float]:
    from tilewright import Tensor, jit, nn
    from tilewright.nn.state import get_parameters

    layers: list[Any] = [nn.Conv2d(1, 32, 5), Tensor.relu, nn.Conv2d(32, 32, 5), Tensor.relu, nn.BatchNorm2d(32)]
    layers += [Tensor.max_pool2d, nn.Conv2d(32, 64, 3), Tensor.relu, nn.Conv2d(64, 64, 3), Tensor.relu]
    layers += [nn.BatchNorm2d(64), Tensor.max_pool2d, lambda x: x.flatten(1), nn.Linear(576, 10)]
    optimizer = nn.optim.Adam(get_parameters(layers))
    images, labels = batch()
    x, y = Tensor(images).realize(), Tensor(labels.astype(np.int32)).realize()

    @jit
    def step() -> Tensor:
        optimizer.zero_grad()
        loss = x.sequential(layers).sparse_categorical_crossentropy(y)
        loss.backward()
        optimizer.step()
        return loss.realize()

    def train() -> float:
        with Tensor.train():
            return float(step().item())

    return train


def torch_step() -> Callable[[], float]:
    import torch
    from torch import nn

    layers = [nn.Conv2d(1, 32, 5), nn.ReLU(), nn.Conv2d(32, 32, 5), nn.ReLU(), nn.BatchNorm2d(32), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.BatchNorm2d(64), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(576, 10))
    optimizer = torch.optim.Adam(model.parameters())
    images, labels = batch()
    x, y = torch.from_numpy(images), torch.from_numpy(labels)

    def train() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return train


STEPS = {"tilewright": our_step, "torch": torch_step}


def measure(library: str, steps: int, is_detailed: bool) -> dict[str, Any]:
    """In this process, which has imported nothing of the library yet."""
    importlib.import_module(library)
    importlib.import_module(f"{library}.nn")
    found: dict[str, Any] = {"import": peak_bytes()}
    details = Details() if is_detailed and library == "tilewright" else None
    step = STEPS[library]()
    after = []
    for _ in range(steps):
        step()
        after.append(peak_bytes())
    found |= {"first": after[0], "peak": after[-1], "resident": resident_bytes()}
    if details is not None:
        found["details"] = details.values()
    return found


class Details:
    """What our process holds, told by the schedules that ran and by how its size grew meanwhile."""

    def __init__(self) -> None:
        from tilewright.base.events import subscribe

        self.plans: dict[int, Any] = {}
        self.text = self.kernels = 0
        self.marks = {"resident after import": resident_bytes()}
        self.subscription = subscribe(self.note, kinds=("schedule", "kernel-compiled"))

    def note(self, event: Any) -> None:
        if event.kind == "schedule":
            self.plans[id(event["plan"])] = event["plan"]
            self.marks.setdefault("resident when first scheduled", resident_bytes())
        else:
            self.kernels += 1
            self.text += len(event["source"])
            self.marks["resident when last compiled"] = resident_bytes()

    def values(self) -> dict[str, int]:
        from tilewright.base.events import GlobalCounters

        largest = max(self.plans.values(), key=lambda plan: sum(size for _, size in plan.arenas))
        found = {"arena of temporaries": sum(size for _, size in largest.arenas), "of it alive at once": alive(largest)}
        kinds = {kind: sum(slot.nbytes for slot in largest.slots if slot.kind == kind) for kind in ("input", "output")}
        found |= {f"{kind}s of that schedule": size for kind, size in kinds.items()}
        found |= {"buffers held at the end": GlobalCounters.mem_used, "text of the kernels": self.text}
        return self.marks | found | {"kernels compiled": self.kernels}


def alive(plan: Any) -> int:
    """The most bytes of temporaries that one item of a schedule finds alive: no placement needs less."""
    from tilewright.schedule.steps.memory import lifetimes

    lives = {slot: life for slot, life in lifetimes(plan.items).items() if plan.slots[slot].kind == "temp"}
    sizes = {slot: plan.slots[slot].nbytes for slot in lives}
    return max(
        sum(sizes[slot] for slot, (first, last) in lives.items() if first <= position <= last)
        for position in range(len(plan.items))
    )


# ---------------------------------------------------------------- the run


def run_library(library: str, steps: int, is_detailed: bool) -> dict[str, Any]:
    """In a process of its own, with an empty cache: what compiles is part of the peak."""
    command = [sys.executable, "-m", "bench.memory_step", "--library", library, "--steps", str(steps)]
    command += ["--detail"] * is_detailed
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": folder}
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def show(library: str, found: dict[str, Any]) -> None:
    megabytes = {name: found[name] / 1e6 for name in ("import", "first", "peak", "resident")}
    print(f"{library:12s}" + "".join(f"{name} {size:7.1f} MB   " for name, size in megabytes.items()))
    for name, value in found.get("details", {}).items():
        print(f"    {name:32s}" + (f"{value:10d}" if name.startswith("kernels") else f"{value / 1e6:10.1f} MB"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=4, help="from the third on a step is replayed")
    parser.add_argument("--detail", action="store_true", help="what our peak consists of")
    parser.add_argument("--library", choices=sorted(STEPS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.library:
        print(json.dumps(measure(arguments.library, arguments.steps, arguments.detail)))
        return
    ours = run_library("tilewright", arguments.steps, arguments.detail)
    show("tilewright", ours)
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed: nothing to compare with")
        return
    theirs = run_library("torch", arguments.steps, False)
    show("torch", theirs)
    whole = ours["peak"] / theirs["peak"]
    added = (ours["peak"] - ours["import"]) / (theirs["peak"] - theirs["import"])
    print(f"ours by torch's: the whole {whole:.2f}, what the steps add {added:.2f}; the bar is {BAR}")
    sys.exit(max(whole, added) > BAR)


if __name__ == "__main__":
    main()
