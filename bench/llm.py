"""Language models beside llama.cpp: `python -m bench.llm smollm2.gguf:512 gemma3.gguf:64 [--rounds 3]`. In: paths of
GGUF files or names of the registry, each with the length of a prompt. Out: per row tokens a second of ours and of
llama-cpp-python, which take turns in one process, and their ratio; then, of a process of its own with a warm cache, the
seconds from loading to the first token and the resident memory over the size of the file. Without llama-cpp-python our
side alone.

`--products` measures single products with random weights instead: bytes of weights a second at one token, beside a sum
of the same bytes, and operations a second at many tokens. On a machine that others use, the CPU time of all threads
says more: `--clock cpu`."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.measuring import CLOCKS
from tilewright import Tensor, jit
from tilewright.llm.quantised import product
from tilewright.llm.quantised.layouts import LAYOUTS
from tilewright.llm.quantised.types import TYPES

ANSWER = 32  # tokens that are decoded in a round
CONTEXT = 1024
ROWS, COLUMNS, TOKENS = 32768, 2048, 128  # of single products


def prompt_of(length: int, seed: int) -> list[int]:
    """Any tokens; a seed gives a prompt that no earlier one begins with."""
    return [int(token) for token in np.random.default_rng(seed).integers(300, 30000, length)]


def find_model(name: str) -> str:
    """A path, or a name of the registry."""
    if os.path.exists(name):
        return name
    from tilewright.llm import registry

    return str(registry.find_model(name))


def make_ours(path: str) -> Callable[[int, int], tuple[float, float]]:
    from tilewright.llm.files.load import load_model
    from tilewright.llm.generator import Generator
    from tilewright.llm.sampling import Sampling

    generator = Generator(load_model(path).model, context=CONTEXT, chunk=CONTEXT, end_tokens=())

    def measure(length: int, seed: int) -> tuple[float, float]:
        start = CLOCK()
        request = generator.submit(prompt_of(length, seed), Sampling(temperature=0.0), ANSWER + 1)
        while not request.tokens:
            generator.step()
        first = CLOCK()
        generator.run(request)
        return first - start, (CLOCK() - first) / ANSWER

    return measure


def make_theirs(path: str) -> Callable[[int, int], tuple[float, float]]:
    from llama_cpp import Llama

    cores = len(os.sched_getaffinity(0))
    model = Llama(path, n_ctx=CONTEXT, n_threads=cores, n_threads_batch=cores, n_batch=CONTEXT, verbose=False)

    def measure(length: int, seed: int) -> tuple[float, float]:
        model.reset()
        start = CLOCK()
        model.eval(prompt_of(length, seed))
        first = CLOCK()
        for _ in range(ANSWER):
            model.eval([int(np.argmax(np.ctypeslib.as_array(model._ctx.get_logits(), (model.n_vocab(),))))])
        return first - start, (CLOCK() - first) / ANSWER

    return measure


CLOCK: Callable[[], float] = time.perf_counter


def compare(name: str, length: int, rounds: int) -> None:
    path = find_model(name)
    sides = {"tilewright": make_ours(path)}
    if importlib.util.find_spec("llama_cpp"):
        sides["llama.cpp"] = make_theirs(path)
    best = {side: [float("inf")] * 2 for side in sides}
    for seed in range(rounds + 2):  # two rounds record and compile
        for side, measure in sides.items():
            times = measure(length, seed)
            if seed > 1:
                best[side] = [min(pair) for pair in zip(best[side], times)]
    for number, (row, count) in enumerate(((f"prefill {length}", length), ("decode", 1))):
        speeds = {side: count / found[number] for side, found in best.items()}
        text = ", ".join(f"{side} {speed:.1f} tokens/s" for side, speed in speeds.items())
        ratio = f", ratio {speeds['tilewright'] / speeds['llama.cpp']:.2f}" if len(speeds) > 1 else ""
        print(f"{Path(path).name} {row}: {text}{ratio}", flush=True)
    command = [sys.executable, "-m", "bench.first_token", path]
    for _ in range(2):  # the first process compiles what the second one loads
        child = subprocess.run(command, capture_output=True, text=True, check=True)
    facts = json.loads(child.stdout.splitlines()[-1])
    print(
        f"{Path(path).name}: {facts['first']:.2f} s from loading to the first token, "
        f"{facts['resident'] / 1e6:.0f} MB resident, {facts['resident'] / os.path.getsize(path):.2f} of the file",
        flush=True,
    )


# ---------------------------------------------------------------- single products


def random_blocks(kind: str, rows: int, columns: int) -> Any:
    form = TYPES[kind]
    blocks = np.random.default_rng(0).integers(0, 256, (rows, columns // form.size, form.nbytes), dtype=np.uint8)
    for first in (208,) if kind == "Q6_K" else (0, 2) if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else (0,):
        blocks[..., first : first + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    return blocks.reshape(rows, -1)


def best_seconds(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Of calls that take turns."""
    best = dict.fromkeys(calls, float("inf"))
    for number in range(rounds + 3):
        for name, call in calls.items():
            start = CLOCK()
            call()
            if number > 2:
                best[name] = min(best[name], CLOCK() - start)
    return best


def total_of(blocks: Tensor) -> Tensor:
    return blocks.cast("int32").sum()


def products(kinds: list[str], rounds: int) -> None:
    for kind in kinds or list(LAYOUTS):
        blocks = Tensor(random_blocks(kind, ROWS, COLUMNS)).realize()
        one, many = (Tensor.rand(tokens, COLUMNS).realize() for tokens in (1, TOKENS))
        multiply = jit(functools.partial(product.linear, TYPES[kind], blocks))
        total = jit(functools.partial(total_of, blocks))
        calls = {"one": functools.partial(multiply, one), "many": functools.partial(multiply, many), "sum": total}
        found = best_seconds(calls, rounds)
        nbytes = blocks.nbytes()
        print(
            f"{kind}: one token {nbytes / found['one'] / 1e9:.2f} GB/s, {found['sum'] / found['one']:.2f} of a sum of "
            f"the bytes; {TOKENS} tokens {2 * ROWS * COLUMNS * TOKENS / found['many'] / 1e9:.0f} GOP/s",
            flush=True,
        )


def main() -> None:
    global CLOCK
    parser = argparse.ArgumentParser(description="language models beside llama.cpp")
    parser.add_argument("rows", nargs="*", help="model[:length of the prompt], or formats with --products")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--products", action="store_true")
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error(f"--rounds {given.rounds} times nothing: give at least 1")
    CLOCK = CLOCKS[given.clock]
    if given.products:
        products(given.rows, given.rounds)
    for row in () if given.products else given.rows:
        name, _, length = row.partition(":")
        compare(name, int(length or 128), given.rounds)


if __name__ == "__main__":
    main()
