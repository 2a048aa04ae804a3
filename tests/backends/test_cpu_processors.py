"""Code for processors other than this one: what is known of each by its name, as LLVM knows it; the option that names
one; kernels for it run here and their instructions looked at."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from tilewright import Tensor
from tilewright.backends.cpu.code import llvm
from tilewright.backends.cpu.device import CpuDriver, cpu_target
from tilewright.backends.cpu.host.processors import _FLAGS, Processor, processor, this_processor
from tilewright.base.config import Context
from tilewright.base.errors import ConfigError

NAMED = [(instruction_set, name) for instruction_set, names in _FLAGS.items() for name in names]
RUNNABLE = [
    name
    for name, flags in _FLAGS[this_processor().instruction_set].items()
    if this_processor().flags >= set(flags.split())
]

# What a processor can do shows in the instructions that LLVM chooses for these.
PROBES = {
    "add": "define V @f(V %a, V %b) #0 {\n %c = add V %a, %b\n ret V %c\n}".replace("V", "<16 x i32>"),
    "fuse": "define float @f(float %a, float %b, float %c) {\n %d = fmul contract float %a, %b\n"
    " %e = fadd contract float %d, %c\n ret float %e\n}",
    "half": "define <4 x float> @f(<4 x half> %a) {\n %b = fpext <4 x half> %a to <4 x float>\n ret <4 x float> %b\n}",
}
DOTS = {name: f"aarch64.neon.{name}.v4i32.v16i8" for name in ("sdot", "udot", "usdot")}
for _name, _spelled in {"vpdpbusd": "x86.avx512.vpdpbusd.128", **DOTS}.items():
    PROBES[_name] = (
        f"declare S @llvm.{_spelled}(S, B, B)\ndefine S @f(S %a, B %b, B %c) {{\n"
        f" %d = call S @llvm.{_spelled}(S %a, B %b, B %c)\n ret S %d\n}}"
    )
    PROBES[_name] = re.sub(r"\bS\b", "<4 x i32>", re.sub(r"\bB\b", "<16 x i8>", PROBES[_name]))


def assembly_for(instruction_set: str, name: str, text: str, features: str = "") -> str:
    """What LLVM makes of a text for any processor, also one that this machine is not."""
    binding = llvm._binding()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    try:
        target = binding.Target.from_triple(f"{instruction_set}-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip(f"this LLVM does not write {instruction_set}")
    machine = target.create_target_machine(cpu=name, features=features, opt=2)
    attributes = f"\nattributes #0 = {{ {llvm.FUNCTION_ATTRIBUTES} }}\n"
    return str(machine.emit_assembly(binding.parse_assembly(text + attributes)))


@pytest.mark.parametrize(("instruction_set", "name"), NAMED)
def test_llvm_knows_the_same_of_every_name(instruction_set: str, name: str) -> None:
    flags = _FLAGS[instruction_set][name].split()
    found = Processor(instruction_set, frozenset(flags), name)
    if instruction_set == "x86_64":
        register = {64: "%zmm", 32: "%ymm", 16: "%xmm"}[found.vector()[0]]
        assert set(re.findall(r"%[xyz]mm", assembly_for(instruction_set, name, PROBES["add"]))) == {register}
        assert ("fma" in flags) == ("vfmadd" in assembly_for(instruction_set, name, PROBES["fuse"]))
        assert found.has_half_casts() == ("vcvtph2ps" in assembly_for(instruction_set, name, PROBES["half"]))
    else:
        assert re.search(r"add\s+v\d\.4s", assembly_for(instruction_set, name, PROBES["add"]))
        assert "fmadd" in assembly_for(instruction_set, name, PROBES["fuse"])
        assert "fcvtl" in assembly_for(instruction_set, name, PROBES["half"])
    for dot in {each.name for each in found.dot_products()} & set(PROBES):
        assert dot in assembly_for(instruction_set, name, PROBES[dot])


def test_what_the_kernel_tells_of_an_unknown_arm_reaches_llvm() -> None:
    """LLVM takes a processor that it does not know for the oldest one, and would end the process at a dot product."""
    found = Processor("aarch64", frozenset({"asimd", "asimddp", "i8mm"}))
    assert [each.name for each in found.dot_products()] == ["sdot", "udot", "usdot"]
    for dot in ("sdot", "udot", "usdot"):
        assert dot in assembly_for("aarch64", "generic", PROBES[dot], "+neon" + found.further_features())
    assert Processor("aarch64", frozenset({"asimd"})).further_features() == ""
    assert Processor("x86_64", frozenset({"avx2"})).further_features() == ""


# ---------------------------------------------------------------- the option


def test_a_processor_that_is_not_known_or_cannot_run_here_is_refused() -> None:
    with Context(CPU_ARCH="pentium"), pytest.raises(ConfigError, match="known as 'pentium'"):
        Tensor([1.0]).exp().realize()
    others = [name for name in _FLAGS[this_processor().instruction_set] if name not in RUNNABLE]
    for name in others:
        with pytest.raises(ConfigError, match="this machine does not have"):
            processor(name)


def test_each_processor_has_cache_keys_of_its_own() -> None:
    targets = [cpu_target("llvm", name) for name in ("", *RUNNABLE)]
    assert len({(target.toolchain, target.arch) for target in targets}) == len(targets)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(shape).astype(np.float32)


COMPUTATIONS: dict[str, tuple[Callable[[], Tensor], Callable[[], np.ndarray]]] = {
    "product": (lambda: Tensor(numbers(65, 70)) @ Tensor(numbers(70, 131)), lambda: numbers(65, 70) @ numbers(70, 131)),
    "exp": (lambda: Tensor(numbers(1000)).exp(), lambda: np.exp(numbers(1000))),
    "sum": (lambda: Tensor(numbers(64, 999)).sum(1), lambda: numbers(64, 999).sum(1)),
    "half": (
        lambda: (Tensor(numbers(333)).half() * 2).float(),
        lambda: (numbers(333).astype(np.float16) * np.float16(2)).astype(np.float32),
    ),
    "bytes": (
        lambda: (Tensor(np.arange(-60, 60, dtype=np.int8).reshape(8, 15)).int() @ Tensor.ones(15, 9).int()).float(),
        lambda: (np.arange(-60, 60).reshape(8, 15) @ np.ones((15, 9), int)).astype(np.float32),
    ),
    "saturating": (
        lambda: Tensor(np.array([np.nan, 1e30, -1e30, -1.5, 3e9], np.float32)).cast("int32").float(),
        lambda: np.array([0, 2147483647, -2147483648, -1, 2147483647], np.int32).astype(np.float32),
    ),
}


@pytest.mark.parametrize("computation", COMPUTATIONS)
@pytest.mark.parametrize("name", RUNNABLE)
def test_kernels_for_each_processor_that_runs_here(name: str, computation: str) -> None:
    ours, reference = COMPUTATIONS[computation]
    with Context(CPU_ARCH=name):
        np.testing.assert_allclose(ours().numpy(), reference(), rtol=2e-5, atol=2e-5)


def test_the_option_decides_the_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same product under one name after the other: no kernel of one is taken for another's."""
    texts: dict[str, str] = {}
    compiled = CpuDriver.compile

    def note(driver: CpuDriver, source: str) -> bytes:
        texts[name] = texts.get(name, "") + driver.disassemble(source)
        return compiled(driver, source)

    monkeypatch.setattr(CpuDriver, "compile", note)
    left, right = Tensor(numbers(96, 97)).realize(), Tensor(numbers(97, 96)).realize()
    names = [name for name in ("x86-64-v2", "haswell", "skylake-avx512", "generic") if name in RUNNABLE]
    for name in names:
        with Context(CPU_ARCH=name, CACHE=0):
            (left @ right).realize()
    used = {name: {word for word in ("xmm", "ymm", "zmm", "vfmadd", "fmla") if word in texts[name]} for name in names}
    expected = {"x86-64-v2": {"xmm"}, "generic": {"fmla"}}
    for name in names:
        assert used[name] - {"xmm"} == expected.get(name, {"zmm" if "512" in name else "ymm", "vfmadd"}) - {"xmm"}
