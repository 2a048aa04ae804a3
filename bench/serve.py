"""How much eight clients get from a server that one gets alone: `python -m bench.serve [MODEL]`.

In: a model, as `tilewright serve` takes it. Out: tokens per second of one client and of all clients together, measured
in turns against one server process, so that a busy machine slows both; the same per second of the server's processor
time, which other programs do not change much; their ratios; and how many sequences shared a step."""

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


def rates(address: str, clients: int, tokens: int, first: int) -> tuple[float, float]:
    """Tokens of all clients together, from the first request to the last answer: per second that passed, and per
    second of processor time of the server."""
    began, worked = time.perf_counter(), metric(address, "process_cpu_seconds_total")
    with ThreadPoolExecutor(clients) as pool:
        counts = list(pool.map(lambda number: complete(address, number, tokens), range(first, first + clients)))
    passed = time.perf_counter() - began
    return sum(counts) / passed, sum(counts) / (metric(address, "process_cpu_seconds_total") - worked)


def wait_until_warm(address: str) -> None:
    """Until everything that the clients will need has been compiled."""
    while True:
        with urllib.request.urlopen(f"{address}/health") as response:
            if not json.load(response)["warming_up"]:
                return
        time.sleep(0.5)


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
        began = time.perf_counter()
        wait_until_warm(address)
        print(f"warm after {time.perf_counter() - began:.1f} s")
        alone, together = [], []
        for number in range(given.rounds):
            alone.append(rates(address, 1, given.tokens, 1000 + number))
            together.append(rates(address, given.clients, given.tokens, 100 * number))
            print(f"round {number + 1}: one client {shown(alone[-1])}; {given.clients} clients {shown(together[-1])}")
        shared = metric(address, "tilewright_step_sequences_sum") / metric(address, "tilewright_step_sequences_count")
    passed, worked = (statistics.median(many[i] / one[i] for many, one in zip(together, alone)) for i in (0, 1))
    print(f"{given.clients} clients get {passed:.2f} times the tokens of one; {worked:.2f} times by processor time")
    print(f"{shared:.1f} sequences a step over all; load of the machine {os.getloadavg()[0]:.1f}")


def shown(measured: tuple[float, float]) -> str:
    return f"{measured[0]:.1f} tokens/s, {measured[1]:.1f} per processor second"


if __name__ == "__main__":
    main()
