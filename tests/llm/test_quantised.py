"""Every block format decodes to the bits of the library `gguf`, also where scales are NaN or infinite."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from tests.devices import Setting, settings, spare_compilers
from tilewright import Tensor
from tilewright.base.errors import DTypeError, ShapeError, UnsupportedError
from tilewright.llm.quantised.types import TYPES
from tilewright.llm.quantised.weight import QuantisedWeight

ROWS, BLOCKS = 6, 3
# Where the float16 numbers of a block are.
HALVES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q4_1": (0, 2),
    "Q5_1": (0, 2),
}
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 6e-8, 65504.0], np.float16)


def random_blocks(name: str, rows: int = ROWS, blocks: int = BLOCKS, special: bool = True) -> np.ndarray:
    """Rows of blocks of any bytes; some of their scales are special."""
    rng = np.random.default_rng(len(name) * 1000 + sum(map(ord, name)))
    kind = TYPES[name]
    found = rng.integers(0, 256, (rows, blocks, kind.nbytes), dtype=np.uint8)
    for offset in HALVES.get(name, (0,) if name not in ("F32", "BF16", "MXFP4") else ()):
        halves = rng.normal(0, 0.1, (rows, blocks)).astype(np.float16)
        if special:
            places = rng.permutation(rows * blocks)[: len(SPECIAL)]
            halves.reshape(-1)[places] = SPECIAL[: len(places)]
        found[..., offset : offset + 2] = halves[..., None].view(np.uint8)
    return found.reshape(rows, -1)


def reference(name: str, blocks: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.dequantize(blocks, gguf.GGMLQuantizationType[name]).astype(np.float32)


def assert_same_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    """NaNs in the same elements; all else bit by bit, signs of zeros included."""
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
    numbers = ~np.isnan(wanted)
    np.testing.assert_array_equal(found[numbers].view(np.uint32), wanted[numbers].view(np.uint32))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("setting", settings(), ids=lambda setting: setting.label)
@pytest.mark.parametrize("name", sorted(TYPES))
def test_blocks_decode_to_the_bits_of_the_library(name: str, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    if not setting.takes(name):
        pytest.skip("a sample of the formats runs on a device that compiles slowly")
    spare_compilers(monkeypatch)
    blocks = random_blocks(name)
    wanted = reference(name, blocks)
    with setting.options():
        weight = QuantisedWeight(name, wanted.shape, Tensor(blocks, device=setting.device))
        assert_same_bits(weight.decode().numpy(), wanted)
        index = Tensor(np.array([[4, 0], [4, 1]], np.int32), device=setting.device)
        assert_same_bits(weight.rows(index).numpy(), wanted[[[4, 0], [4, 1]]])


def test_every_format_of_the_issue_is_there() -> None:
    named = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4"
    assert " ".join(TYPES) == named
    for name, kind in TYPES.items():
        assert (kind.size, kind.nbytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]


def rounding_bound(x: np.ndarray, weights: np.ndarray) -> float:
    """What activations of 8 bits may cost a product: six standard deviations of their rounding. An element is rounded
    to a 127th of the largest of its run."""
    norm = np.linalg.norm(weights.reshape(-1, weights.shape[-1]), axis=-1).max()
    return float(6 * np.abs(x).max() / 127 / np.sqrt(12) * norm)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"])
def test_products_with_quantised_weights(name: str) -> None:
    blocks = random_blocks(name, rows=12, special=False)
    values = reference(name, blocks).astype(np.float64)
    rng = np.random.default_rng(1)
    columns = values.shape[1]
    bias = rng.standard_normal(12).astype(np.float32)
    weight = QuantisedWeight(name, values.shape, Tensor(blocks))
    for shape in ((columns,), (1, columns), (2, 5, columns)):
        x = rng.standard_normal(shape).astype(np.float32)
        wanted = x @ values.T
        bound = rounding_bound(x, values)
        np.testing.assert_allclose(weight.linear(Tensor(x)).numpy(), wanted, rtol=0, atol=bound)
        np.testing.assert_allclose(weight.linear(Tensor(x), Tensor(bias)).numpy(), wanted + bias, rtol=0, atol=bound)
    experts = QuantisedWeight(name, (4, 3, columns), Tensor(blocks))
    x = rng.standard_normal((5, 1, columns)).astype(np.float32)
    chosen = rng.integers(0, 4, (5, 2)).astype(np.int32)
    wanted = np.einsum("tkrc,toc->tkr", values.reshape(4, 3, columns)[chosen], x)
    found = experts.expert_linear(Tensor(x), Tensor(chosen)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=rounding_bound(x, values))


def test_the_gradient_flows_through_a_quantised_product() -> None:
    blocks = random_blocks("Q4_0", rows=5, special=False)
    values = reference("Q4_0", blocks)
    x = Tensor(np.ones((2, values.shape[1]), np.float32), requires_grad=True)
    QuantisedWeight("Q4_0", values.shape, Tensor(blocks)).linear(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), np.tile(values.sum(0), (2, 1)), rtol=1e-4, atol=1e-5)


def test_what_is_no_quantised_weight_is_refused() -> None:
    blocks = Tensor(random_blocks("Q4_0"))
    with pytest.raises(UnsupportedError, match="the type IQ2_XXS"):
        QuantisedWeight("IQ2_XXS", (6, 96), blocks)
    with pytest.raises(ShapeError, match="blocks of 32"):
        QuantisedWeight("Q4_0", (6, 90), blocks)
    with pytest.raises(ShapeError, match="the blocks have"):
        QuantisedWeight("Q4_0", (7, 96), blocks)
    with pytest.raises(DTypeError, match="the blocks are int8"):
        QuantisedWeight("Q4_0", (6, 96), blocks.bitcast("int8"))
    weight = QuantisedWeight("Q4_0", (6, 96), blocks)
    with pytest.raises(ShapeError, match="linear"):
        weight.linear(Tensor.ones(2, 95))
    with pytest.raises(DTypeError, match="linear"):
        weight.linear(Tensor.ones(2, 96, dtype="int32"))
    with pytest.raises(ShapeError, match="expert_linear"):
        weight.expert_linear(Tensor.ones(2, 1, 96), Tensor.zeros(2, 1, dtype="int32"))
