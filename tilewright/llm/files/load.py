"""A language model from a path. In: a GGUF file, a folder of Hugging Face, or the checkpoint of stories260K. Out: the
network and what a tokenizer is made from. A file with the magic of GGUF, or its suffix, is a GGUF file."""

from __future__ import annotations

import os

from tilewright.base.dtype import DType, dtypes, to_dtype
from tilewright.base.errors import DTypeError
from tilewright.graph.spec import Devices
from tilewright.llm.files.loaded import LoadedModel
from tilewright.nn.formats.gguf_header import MAGIC
from tilewright.nn.formats.mapped import Path, check_plain, unreadable


def load_model(path: Path, device: Devices | None = None, dtype: DType | str | None = None) -> LoadedModel:
    """The model of a file or folder. Weights stay as they are there, quantised and mapped; `dtype` is that of
    activations, float32 where it is not said. Over several devices the weights are divided (`shard_model`)."""
    if device is not None and not isinstance(device, str):
        from tilewright.llm.sharding import shard_model

        loaded = load_model(path, device[0], dtype)
        shard_model(loaded.model, device)
        return loaded
    wanted = dtypes.float32 if dtype is None else to_dtype(dtype)
    if not wanted.is_float:
        raise DTypeError("load_model", f"activations cannot be {wanted.name}", "give a float dtype")
    # Each reader is imported only for its files: that of folders imports safetensors and other libraries.
    if os.path.isdir(path):
        from tilewright.llm.files.hugging_face import load_folder

        return load_folder(os.fspath(path), device, wanted)
    check_plain("load_model", path)
    try:
        with open(path, "rb") as file:
            start = file.read(len(MAGIC))
    except OSError as error:
        raise unreadable("load_model", path, error) from error
    if start == MAGIC or os.fspath(path).endswith(".gguf"):
        from tilewright.llm.files.gguf_model import load_gguf

        return load_gguf(path, device, wanted)
    from tilewright.llm.files.stories import load_stories

    return load_stories(path, device, wanted)
