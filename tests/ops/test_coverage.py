"""The op table covers every name of the list, `Tensor` and `nn` have them with their parameters and defaults."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest

from tests.ops.listing import API_LIST, NO_DEFAULT, Listing, listed_names
from tests.ops.table import TABLE, TESTED_ELSEWHERE
from tilewright import Tensor, dtypes, nn

NAMES = listed_names("Tensor")
NN_NAMES = listed_names("nn")
# Properties that only an instance has.
OF_INSTANCES = {"device", "grad", "requires_grad"}


# ---------------------------------------------------------------- the list


def test_the_list_is_read() -> None:
    assert len(NAMES) > 220
    assert len(NN_NAMES) > 25
    assert NAMES["pad"] == {"padding": NO_DEFAULT, "mode": "constant", "value": 0.0}
    assert NAMES["randint"] == {"low": 0, "high": 10, "dtype": "dtypes.int"}
    assert NAMES["max_pool2d"]["kernel_size"] == (2, 2)
    assert NN_NAMES["optim.SGD"]["params"] == NO_DEFAULT


# ---------------------------------------------------------------- the table


def uncovered(names: Listing) -> list[str]:
    """Names of a list that neither a row nor a reason stands for."""
    return sorted(set(names) - {row.op for row in TABLE} - set(TESTED_ELSEWHERE))


def test_every_name_has_a_row() -> None:
    assert uncovered(NAMES) == []


def test_a_name_without_a_row_is_seen() -> None:
    more = listed_names("Tensor", API_LIST.read_text() + "\nTensor.unheard_of(x, dim=0)\n")
    assert uncovered(more) == ["unheard_of"]


def test_nothing_is_excused_but_what_has_a_reason() -> None:
    sharding = {"shard", "shard_", "shard_like"}
    assert set(TESTED_ELSEWHERE) == {"backward", "gradient", "grad", "custom_kernel"} | sharding
    assert set(TESTED_ELSEWHERE) <= set(NAMES)


def test_row_names_are_unique() -> None:
    names = [row.name for row in TABLE]
    assert sorted({name for name in names if names.count(name) > 1}) == []


# ---------------------------------------------------------------- the package


def differing(found: Any, wanted: dict[str, Any]) -> list[str]:
    """Parameters that a callable lacks, or that have another default there. One that must be given may have one."""
    parameters = inspect.signature(found).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    complaints = []
    for name, default in wanted.items():
        if name not in parameters:
            complaints += [] if takes_any else [f"{name} is missing"]
            continue
        own = parameters[name].default
        if isinstance(default, str) and default.startswith("dtypes."):
            default = getattr(dtypes, default.removeprefix("dtypes."))
        if default != NO_DEFAULT and own != default:
            complaints.append(f"{name}={own!r} instead of {default!r}")
    return complaints


@pytest.mark.parametrize("name", sorted(NAMES))
def test_names_and_parameters_exist(name: str) -> None:
    found = getattr(Tensor([1.0]) if name in OF_INSTANCES else Tensor, name, "missing")
    assert not (isinstance(found, str) and found == "missing")
    if callable(found):
        assert differing(found, NAMES[name]) == []


@pytest.mark.parametrize("name", sorted(NN_NAMES))
def test_names_of_nn_exist(name: str) -> None:
    *modules, last = name.split(".")
    owner = importlib.import_module(f"tilewright.nn.{modules[0]}") if modules else nn
    assert differing(getattr(owner, last), NN_NAMES[name]) == []


def test_another_default_is_seen() -> None:
    assert differing(Tensor.softmax, {"axis": 0}) == ["axis=-1 instead of 0"]
    assert differing(Tensor.softmax, {"dim": -1}) == ["dim is missing"]
