"""How much eight clients get from a server that one gets alone: `python -m bench.serve [MODEL]`.

In: a model, as `tilewright serve` takes it. Out: tokens per second of one client and of all clients together, measured
in turns against one server process, so that a busy machine slows both; their ratio; and how many sequences shared a
step, from the server's own metrics."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

SUBJECTS = ("a lighthouse", "a glacier", "a clockmaker", "a desert town", "a deep-sea diver", "a library", "a comet")
SUBJECTS += ("a baker", "a violin", "a volcano", "a night train", "an orchard", "a cartographer", "a fox", "a bridge")
SUBJECTS += ("a harbour",)


@contextlib.contextmanager
def serving(model: str, slots: int, options: list[str]) -> Iterator[str]:
    """The address of a server process that ends with the block."""
    command = [sys.executable, "-m", "tilewright", "serve", "--port", "0", "--slots", str(slots), *options]
    with subprocess.Popen([*command, *([model] if model else [])], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("API"):
                    yield line.split()[1].removesuffix("/v1")
                    break
            else:
                sys.exit("the server did not start")
        finally:
            process.send_signal(signal.SIGTERM)


def complete(address: str, number: int, tokens: int) -> int:
    """Ask for a long text; returns how many tokens came."""
    subject = SUBJECTS[number % len(SUBJECTS)]
    prompt = f"Here is a very long story about {subject}, number {number}, told slowly and in great detail.\n\nOnce"
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0.8, "seed": number}
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=600) as response:
        return int(json.load(response)["usage"]["completion_tokens"])


def rate(address: str, clients: int, tokens: int, first: int) -> float:
    """Tokens per second of all clients together, from the first request to the last answer."""
    began = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        counts = list(pool.map(lambda number: complete(address, number, tokens), range(first, first + clients)))
    return sum(counts) / (time.perf_counter() - began)


def metric(address: str, name: str) -> float:
    with urllib.request.urlopen(f"{address}/metrics") as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--context", type=int, default=1024)
    given = parser.parse_args()
    with serving(given.model, given.clients, ["--context", str(given.context)]) as address:
        rate(address, given.clients, 8, 0)  # compiles
        alone, together = [], []
        for number in range(given.rounds):
            alone.append(rate(address, 1, given.tokens, 1000 + number))
            together.append(rate(address, given.clients, given.tokens, 100 * number))
            ratio = together[-1] / alone[-1]
            rates = f"one {alone[-1]:.1f}, {given.clients} {together[-1]:.1f} tokens/s"
            print(f"round {number + 1}: {rates}, {ratio:.2f} times")
        shared = metric(address, "tilewright_step_sequences_sum") / metric(address, "tilewright_step_sequences_count")
    ratio = statistics.median(many / one for many, one in zip(together, alone))
    print(f"median ratio {ratio:.2f}; {shared:.1f} sequences a step over all; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
