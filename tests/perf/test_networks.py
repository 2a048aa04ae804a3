"""bench/networks.py on sizes that are tiny: the two models are one network, values decide whether a row is timed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import models, network_rows, networks
from tilewright import Context, Tensor
from tilewright.nn.state import get_state_dict

ROOT = Path(__file__).resolve().parents[2]


def job(name: str, device: str = "CPU") -> networks.Job:
    return networks.Job(name, device, "float32", "tiny", 0.0)


@pytest.mark.torch
@pytest.mark.parametrize("name", networks.NETWORKS)
def test_the_tensors_of_a_network_have_the_same_names_and_shapes_in_both(name: str) -> None:
    for scale in ("host", "tiny"):
        sizes = network_rows.NETWORKS[name].sizes[scale]
        if scale == "host" and name.startswith(("llama", "gpt2", "vit")):
            continue  # torch would fill gigabytes with numbers
        row = network_rows.NETWORKS[name]
        ours = {key: tensor.shape for key, tensor in get_state_dict(row.build(models.our_kit(), sizes)).items()}
        theirs = row.build(models.torch_kit(), sizes).state_dict()
        assert ours == {key: tuple(tensor.shape) for key, tensor in theirs.items()}


@pytest.mark.torch
@pytest.mark.parametrize("name", ["gpt2", "llama-decode", "mixer", "lstm"])
def test_a_network_is_compared_with_torch_and_then_timed(name: str) -> None:
    expected, theirs = networks.measure_torch(job(name), ("eager",))
    ours = networks.measure_ours(job(name), expected)
    assert networks.error_of(theirs["eager"].results, expected) < 1e-5
    assert networks.error_of(ours.results, expected) < 1e-5
    assert ours.steady
    assert theirs["eager"].steady
    if networks.NETWORKS[name].is_step:
        losses = [float(loss) for loss in ours.results]
        assert losses[2] < 0.999 * losses[0], "the comparison would not see a wrong gradient"


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in networks.NETWORKS if name not in ("gpt2", "llama-decode", "lstm")])
def test_the_other_networks_agree_with_torch(name: str) -> None:
    expected, _ = networks.measure_torch(job(name), ())
    assert networks.error_of(networks.measure_ours(job(name), expected).results, expected) < 1e-4


def test_a_wrong_result_is_not_timed() -> None:
    measured = networks.measure_ours(job("mixer"), None)
    assert measured.steady
    right = measured.results[0]
    for wrong in (right * 1.01, np.full_like(right, np.nan)):
        measured = networks.measure_ours(job("mixer"), [wrong])
        assert measured.steady is None
        row = {"row": "mixer", "title": "MLP-Mixer", "ours": networks.summary(measured, [wrong])}
        assert "| MLP-Mixer | wrong | - |" in networks.table([row])[2]
    # Steps of a deep network are ill-conditioned: the tolerance is torch's own error where that is larger.
    assert networks.measure_ours(job("mixer"), [right * 1.01], [0.005]).steady
    assert networks.measure_ours(job("mixer"), [right * 1.01], [float("nan")]).steady is None


def test_an_image_or_token_that_matters_changes_the_result() -> None:
    """Weights of a name are not equal rows, which would hide an operand that is read transposed."""
    weight = network_rows.values("blocks.0.attention.entering.weight", (48, 16))
    assert len(np.unique(weight)) == weight.size
    assert not np.array_equal(weight, network_rows.values("blocks.1.attention.entering.weight", (48, 16)))
    assert np.allclose(
        network_rows.values("cosines", (5, 4)) ** 2 + network_rows.values("sines", (5, 4)) ** 2, 1, atol=1e-6
    )


@pytest.mark.parametrize("device", ["CPU", "PYTHON"])
def test_the_slowest_kernels_are_listed_with_launch_work_and_line(device: str) -> None:
    lines = networks.list_kernels(job("mixer", device), 2)
    assert "launches of" in lines[0]
    assert len(lines) == 4
    first = lines[2].split(None, 7)
    assert float(first[0]) >= float(lines[3].split()[0])
    assert " by " in first[7]
    assert "bench/models.py:" in first[7]


def test_the_kernels_of_a_step_count_with_all_their_launches() -> None:
    x, w = Tensor.rand(8, 8).realize(), Tensor.rand(8, 8).realize()
    with Context(DEVICE="CPU"):
        lines = networks.slowest_kernels(lambda: ((x @ w).contiguous() @ w).realize(), 5)
    assert lines[0].startswith("2 launches of 1 kernels")
    assert lines[2].split()[2] == "2"
    assert float(lines[2].split()[3]) == pytest.approx(2 * 2 * 8**3 / 1e9, abs=1e-3)


def test_the_ratio_is_of_the_better_of_torch() -> None:
    side: dict[str, Any] = {"first": 1.5, "steady": 0.01, "peak": 2_000_000, "error": 1e-6}
    row = {"row": "mnist", "title": "MNIST", "ours": side, "eager": side | {"steady": 0.03}}
    row["compiled"] = side | {"steady": 0.02}
    assert "| MNIST | 10 | 30 | 20 | 2.00 | 1.50 | 1.50 | 1.50 | 2 | 2 | 2 | 1.0e-06 |" in networks.table([row])[2]


def test_an_unknown_row_and_a_failing_process_are_named() -> None:
    command = [sys.executable, "-m", "bench.networks", "--rows", "gpt3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no row 'gpt3'; there are: gpt2," in done.stderr
    assert networks.run_process([sys.executable, "-c", "raise ValueError('no card')"], {}) == "ValueError: no card"
