"""Writes the .pt and .pth files beside it and torch_expected.json, which tells what they hold. Needs torch.

Run with: python tests/data/make_torch_files.py
"""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).resolve().parent
BASE = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)

TENSORS = {
    "contiguous": BASE,
    "transposed": BASE[0].T,
    "permuted": BASE.permute(2, 0, 1),
    "channels_last": torch.arange(48.0).reshape(1, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    "sliced": BASE[:, 1:, ::2],
    "row": BASE[1, 2],
    "expanded": torch.tensor([[1.0], [2.0]]).expand(2, 3),
    "overlapping": torch.arange(6.0).unfold(0, 3, 1),
    "scalar": torch.tensor(3.5),
    "empty": torch.zeros(0, 3),
    "parameter": torch.nn.Parameter(torch.tensor([1.5, -2.5])),
    "half": torch.tensor([0.5, -1.25, 65504.0]).half(),
    "bfloat16": torch.tensor([1.0, -3.140625, 1e30]).bfloat16(),
    "double": torch.tensor([1e300, 0.1], dtype=torch.float64),
    "int8": torch.tensor([-128, 127], dtype=torch.int8),
    "uint8": torch.tensor([0, 255], dtype=torch.uint8),
    "int16": torch.tensor([-32768, 5], dtype=torch.int16),
    "int32": torch.tensor([-(2**31), 7], dtype=torch.int32),
    "int64": torch.tensor([2**62, -1]),
    "bool": torch.tensor([True, False, True]),
}
# The older format has no storages for these.
NEWER = {
    "uint16": torch.tensor([65535, 1], dtype=torch.uint16),
    "float8_e4m3": torch.tensor([1.5, -448.0]).to(torch.float8_e4m3fn),
    "float8_e5m2": torch.tensor([1.5, -57344.0]).to(torch.float8_e5m2),
}
EXTRAS = {
    "step": 7,
    "lr": 0.125,
    "name": "net",
    "none": None,
    "flag": True,
    "list": [1, 2, (3, 4)],
    "set": {1, 2},
    "bytes": b"\x00\xff",
    "size": BASE.shape,
    "device": torch.device("cuda", 1),
    "dtype": torch.float16,
    "counter": collections.Counter("abb"),
}


def facts(tensor: torch.Tensor) -> list[Any]:
    """The dtype by our name, the shape and the values."""
    wide = tensor.detach().to(torch.float64 if tensor.dtype.is_floating_point else torch.int64)
    name = str(tensor.dtype).removeprefix("torch.").replace("e4m3fn", "e4m3")
    return [name, list(tensor.shape), wide.flatten().tolist()]


def main() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).state_dict()
    torch.save({"model": TENSORS | NEWER, **EXTRAS}, FOLDER / "torch_zip.pt")
    torch.save({"model": TENSORS, **EXTRAS}, FOLDER / "torch_legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(network, FOLDER / "torch_state_dict.pth")
    expected = {
        "model": {name: facts(tensor) for name, tensor in (TENSORS | NEWER).items()},
        "state_dict": {name: facts(tensor) for name, tensor in network.items()},
    }
    (FOLDER / "torch_expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
