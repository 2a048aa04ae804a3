"""`make test` as on a bare machine: `python -m tests.bare [pytest's arguments]`. In: nothing. Out: what pytest prints,
and its exit status.

A bare machine has no driver that `.ci/run` installs, no compiler and no cache. The drivers of this one are hidden by
the loaders' own variables, compilers by a PATH without them, and wgpu is left with OpenGL, whose adapters have the
fewest types; first it is checked that none of these is found. Only tests whose outcome can differ are run: those that
ask which devices and compilers are here, and all that run on WEBGPU, whose adapter is another. The rest of the suite
runs on CPU and PYTHON, which need nothing of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

FILES = ("tests/runtime/test_device.py", "tests/backends/test_webgpu.py", "tests/backends/test_c_style.py")
TABLES = ("tests/ops/test_table.py", "tests/issues")
WANTED = " or ".join(("WEBGPU", *(Path(file).name for file in FILES)))
NOWHERE = "/nonexistent"
HIDDEN = {
    "OCL_ICD_VENDORS": NOWHERE,
    "OPENCL_VENDOR_PATH": NOWHERE,
    "VK_DRIVER_FILES": NOWHERE,
    "VK_ICD_FILENAMES": NOWHERE,
    "WGPU_BACKEND_TYPE": "OpenGL",
}
# What must not be found then (`Setting.label`). A card with its own driver, as CUDA's, is no matter of packages.
GONE = {"OPENCL", "CPU-clang", "CPU-gcc"}


def bare_environment(cache: str) -> dict[str, str]:
    """This process's, without drivers, compilers and what other processes compiled."""
    hidden = {name for name in os.environ if name.startswith("TILEWRIGHT_")}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return {
        **kept,
        **HIDDEN,
        "PATH": str(Path(sys.executable).parent),
        "TILEWRIGHT_CACHE_DIR": cache,
        "MESA_SHADER_CACHE_DISABLE": "true",
    }


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="tilewright-bare-") as cache:
        environment = bare_environment(cache)
        script = "from tests.devices import settings; print(*(setting.label for setting in settings()))"
        found = subprocess.run([sys.executable, "-c", script], env=environment, check=True, stdout=subprocess.PIPE)
        # wgpu says on its own which backend it was told to use.
        left = GONE & {*found.stdout.decode().splitlines()[-1].split()}
        if left:
            print(f"this machine cannot be made bare: {', '.join(sorted(left))} is still found")
            return 1
        pytest = [sys.executable, "-m", "pytest", "-q", "-m", "not slow and not torch", "-k", WANTED]
        return subprocess.run([*pytest, *arguments, *FILES, *TABLES], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
