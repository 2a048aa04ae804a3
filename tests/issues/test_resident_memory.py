"""Memory that a small model does not need, as its file and 25 % are the bar: graphs of recorded calls, the header of a
file that was read, and libraries that a digest, a random number or a greedy choice would load."""

from __future__ import annotations

import gc
import hashlib
import json
import mmap
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from tests.llm.models import STORIES, STORIES_TOKENS, stories
from tilewright import Tensor, jit
from tilewright.backends.cpu.host import memory
from tilewright.base.digests import blake2b, sha256
from tilewright.engine.jit.jit import Entry
from tilewright.graph.uop import UOp
from tilewright.llm.generator import Generator
from tilewright.llm.network.model import Transformer
from tilewright.llm.slots import PIECES
from tilewright.nn.formats.mapped import bytes_of, unmap_pages
from tilewright.runtime.buffer import Buffer

T = TypeVar("T")
SMAPS = Path("/proc/self/smaps")


def resident(name: str) -> int:
    """Bytes of a mapped file that are resident in this process."""
    found, is_wanted = 0, False
    for line in SMAPS.read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            is_wanted = line.endswith(name)
        elif is_wanted and first == "Rss:":
            found += int(line.split()[1]) * 1024
    return found


@pytest.mark.skipif(not SMAPS.exists(), reason="the system does not say which pages are resident")
def test_pages_that_were_read_once_are_given_back(tmp_path: Path) -> None:
    path = tmp_path / "mapped.bin"
    contents = np.random.default_rng(0).integers(0, 256, 64 * mmap.PAGESIZE, dtype=np.uint8).tobytes()
    path.write_bytes(contents)
    _, data = bytes_of("test", path)
    assert bytes(data) == contents
    assert resident("mapped.bin") == len(contents)
    unmap_pages(data, 32 * mmap.PAGESIZE + 5)
    assert resident("mapped.bin") == 32 * mmap.PAGESIZE
    assert bytes(data) == contents
    unmap_pages(data, 5)  # no whole page
    assert resident("mapped.bin") == len(contents)
    unmap_pages(memoryview(contents), len(contents))  # of no file


def test_a_recorded_call_keeps_no_graph_alive() -> None:
    """Of a call that was traced once, when its tensors have moved on."""

    class Model:
        def __init__(self) -> None:
            self.state = Tensor.zeros(4).contiguous().realize()

        def __call__(self, x: Tensor) -> Tensor:
            self.state.assign(self.state + x.sum() * 3)
            return (self.state * 2).realize()

    model = Model()
    step = jit(lambda model, x: model(x))
    step(model, Tensor.ones(3).realize())
    node = weakref.ref(model.state.uop)
    for _ in range(3):
        step(model, Tensor.ones(5).realize())
    gc.collect()
    assert node() is None
    np.testing.assert_array_equal(step(model, Tensor.ones(3).realize()).numpy(), np.full(4, 2.0 * 3 * (3 + 15 + 3)))


def test_digests_are_those_of_hashlib() -> None:
    for data in (b"", b"tilewright", bytes(range(256)) * 5):
        assert sha256(data).hexdigest() == hashlib.sha256(data).hexdigest()
        assert blake2b(data, digest_size=8).digest() == hashlib.blake2b(data, digest_size=8).digest()


def test_a_generator_loads_neither_openssl_nor_random_numbers_of_numpy() -> None:
    program = (
        "import json, sys\n"
        "import tilewright.llm.files.load, tilewright.llm.generator, tilewright.llm.slots\n"
        "from tilewright import Tensor\n"
        "from tilewright.llm.sampling import Sampler, Sampling\n"
        "import numpy as np\n"
        "Sampler(Sampling(temperature=1.0)).choose(np.zeros(4, np.float32))\n"
        "(Tensor([1.0, 2.0]) + 1).tolist()\n"
        "print(json.dumps(sorted({'hashlib', 'numpy.random', 'secrets', 'ssl'} & set(sys.modules))))"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(finished.stdout) == []


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a new process has loaded after a few greedy tokens."""
    program = (
        "import json, sys\n"
        "before = set(sys.modules)\n"
        "from tilewright.llm.files.load import load_model\n"
        "from tilewright.llm.generator import Generator\n"
        f"generator = Generator(load_model({str(STORIES / 'stories260K.bin')!r}).model, end_tokens=())\n"
        f"found = generator.run(generator.submit({STORIES_TOKENS[:3]}, limit=4))\n"
        "print(json.dumps([found, sorted(set(sys.modules) - before)]))"
    )
    # The first process stores its kernels: it loads the compiler, which one with a warm cache does not.
    settings = {**os.environ, "VERIFY_GRAPH": "0", "TILEWRIGHT_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    command = [sys.executable, "-c", program]
    for _ in range(2):
        finished = subprocess.run(command, capture_output=True, text=True, check=True, env=settings)
    found, names = json.loads(finished.stdout)
    assert found == STORIES_TOKENS[3:7]
    return list(names)


def test_greedy_generation_loads_no_numpy_and_no_readers_of_other_files(modules: list[str]) -> None:
    others = {"numpy", "tarfile", "zipfile", "pickletools", "gzip", "tilewright.nn.formats.safetensors_file"}
    assert others.union(["platformdirs"] if sys.platform == "linux" else ()).isdisjoint(modules)


def test_greedy_generation_loads_no_tools_of_python_and_no_parts_of_other_networks(modules: list[str]) -> None:
    tools = {"ast", "dataclasses", "dis", "inspect", "random", "tokenize"}
    parts = ("nn.layers", "nn.functions", "llm.network.experts", "llm.network.latent", "llm.sharding")
    parts += ("graph.simplify", "graph.verification.tensor_nodes", "tensor.rare", "tensor.families.statistics")
    assert tools.union(f"tilewright.{part}" for part in parts) & set(modules) == set()


def test_what_recording_needed_is_given_back() -> None:
    """Free blocks of the allocator after the traced calls, and guards that nobody compares."""
    generator = Generator(stories(), context=64, end_tokens=())
    request = generator.submit([1, 2, 3], limit=3)
    while len(request.tokens) < 2:
        generator.step()
        assert memory._allocator.cached < 1 << 20
        assert all(not entry.record.guards.names for entry in entries_of(generator) if entry.record is not None)
    generator.run(request)
    assert [entry.record for entry in entries_of(generator) if entry.ready is not None] == [None]


def entries_of(generator: Generator) -> list[Entry]:
    return [entry for call in generator._network._calls.values() for entry in call.entries.values()]


def test_layers_that_are_alike_are_planned_once_in_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph that a call holds at a time, and what is planned for it, do not grow with the number of layers."""
    model = stories()
    sizes: list[int] = []
    whole = Transformer.hidden

    def measured(self: Transformer, *args: object, **settings: bool) -> Tensor:
        before = count_nodes()
        found = whole(self, *args, **settings)
        sizes.append(count_nodes() - before)
        return found

    monkeypatch.setattr(Transformer, "hidden", measured)
    found = {}
    for count in (1, 5):
        model.layers = model.layers[:1] * count
        sizes.clear()
        generator = Generator(model, context=16, end_tokens=())
        generator.run(generator.submit([1, 2], limit=1))
        states = PIECES[0] * model.config.hidden_size
        found[count] = sizes[0], sum(each.size == states for each in objects_of(Buffer))
    (nodes, buffers), (nodes_of_five, buffers_of_five) = found[1], found[5]
    assert nodes_of_five < 2 * nodes
    assert buffers_of_five == buffers, "all layers write to one memory"


def count_nodes() -> int:
    return len(objects_of(UOp))


def objects_of(kind: type[T]) -> list[T]:
    gc.collect()
    # Of the class itself: `isinstance` would ask objects that warn, such as torch's deprecated ones.
    return [each for each in gc.get_objects() if issubclass(type(each), kind)]
