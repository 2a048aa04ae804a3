"""The first token of a new process: `python -m bench.first_token MODEL`. In: the path of a model. Out: a line of JSON,
the seconds from loading to the first token of a prompt of 16, and the bytes that are resident after some more tokens.
Imports nothing that a program with a model does not need: what `bench.llm` imports would be counted too."""

from __future__ import annotations

import json
import os
import sys
import time

CONTEXT = 1024
# Any tokens. Greedy choices need no random numbers, and importing their module would be counted.
PROMPT = [
    *(25379, 22811, 12790, 7989, 15484, 12326, 23578, 9308),
    *(14454, 17626, 27270, 15289, 8670, 22747, 18665, 7740),
]


def main() -> None:
    # argparse would be counted.
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print("usage: python -m bench.first_token MODEL\n\nMODEL: the path of a GGUF file or of a folder")
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    from tilewright.llm.files.load import load_model
    from tilewright.llm.generator import Generator

    start = time.perf_counter()
    generator = Generator(load_model(sys.argv[1]).model, context=CONTEXT, end_tokens=())
    request = generator.submit(PROMPT, None, 8)
    while not request.tokens:
        generator.step()
    first = time.perf_counter() - start
    generator.run(request)
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    print(json.dumps({"first": first, "resident": pages * os.sysconf("SC_PAGE_SIZE")}))


if __name__ == "__main__":
    main()
