"""Facts of this machine. In: /proc, /sys and the cgroup files, below a root that tests replace. Out: the facts that a
target record and the thread pool need: the processor's flags, cores, memory. Imports neither llvmlite nor numpy, so
that `Device` can answer before the first kernel is compiled; `processors`, `llvm`, `pool` and `memory` use it."""

import functools
import math
import os
import sys

from tilewright.base.digests import sha256

ROOT = "/"
UNLIMITED = 1 << 62  # cgroup v1 writes "no limit" as a number of about 2**63


def machine() -> str:
    """The instruction set under one spelling: `x86_64`, `aarch64`, or what the system says."""
    name = os.uname().machine.lower() if hasattr(os, "uname") else os.environ.get("PROCESSOR_ARCHITECTURE", "").lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def read_text(*parts: str) -> str:
    """The text of a system file; "" where this system has no such file or hides it. Without `pathlib`, which takes
    longer to import than these files take to read."""
    try:
        with open(os.path.join(*parts), "rb", buffering=0) as file:
            return file.read().decode()
    except (OSError, UnicodeDecodeError):
        return ""


def _cpuinfo(root: str) -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo, keys in lower case."""
    first = read_text(root, "proc/cpuinfo").split("\n\n")[0]
    fields = (line.partition(":") for line in first.splitlines())
    return {key.strip().lower(): value.strip() for key, _, value in fields}


@functools.cache
def cpu_flags(root: str = ROOT) -> frozenset[str]:
    """Instruction-set flags as the kernel spells them (`avx2`, `avx512f`, `f16c`; on ARM `asimd`, `asimdhp`)."""
    fields = _cpuinfo(root)
    return frozenset((fields.get("flags") or fields.get("features") or "").split())


@functools.cache
def cpu_identity(root: str = ROOT) -> str:
    """A short digest of everything that decides which code this processor may run; part of a cache key."""
    volatile = {"cpu mhz", "bogomips", "processor", "core id", "apicid", "initial apicid", "physical id", "microcode"}
    fields = {key: value for key, value in _cpuinfo(root).items() if key not in volatile}
    facts = [machine(), sys.platform, *(f"{key}={fields[key]}" for key in sorted(fields))]
    if sys.platform == "darwin":
        facts.append(_darwin_brand())
    return sha256("\n".join(facts).encode()).hexdigest()[:16]


def _darwin_brand() -> str:
    """The processor's name on macOS, where there is no /proc/cpuinfo."""
    import ctypes

    name, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
    ctypes.CDLL(None).sysctlbyname(b"machdep.cpu.brand_string", name, ctypes.byref(size), None, ctypes.c_size_t(0))
    return name.value.decode(errors="replace")


def usable_cores(requested: int | None = None, root: str = ROOT) -> int:
    """Threads worth starting: `requested` if given, else the physical cores this process may use, under its quota.

    `requested` is the value of TILEWRIGHT_THREADS; it overrides everything else, and less than 1 counts as 1.
    """
    if requested is not None:
        return max(1, requested)
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    # Two hardware threads of one core share its vector units, so a second one adds synchronisation and no speed.
    topology = os.path.join(root, "sys/devices/system/cpu")
    cores = {
        read_text(topology, f"cpu{number}/topology/thread_siblings_list").strip() or number for number in processors
    }
    return max(1, min(len(cores), cpu_quota(root)))


def cpu_quota(root: str = ROOT) -> int:
    """Whole cores the cgroup allows (v1 or v2), rounded up; a huge number where there is no quota."""
    cores = float(UNLIMITED)
    for folder in _cgroup_folders("cpu", root):
        quota, _, period = read_text(folder, "cpu.max").partition(" ")
        if not quota:
            quota, period = read_text(folder, "cpu.cfs_quota_us").strip(), read_text(folder, "cpu.cfs_period_us")
        if is_number(quota) and is_number(period) and int(period):
            cores = min(cores, int(quota) / int(period))
    return max(1, math.ceil(cores))


def memory_total(root: str = ROOT) -> int:
    """Bytes of memory this process can ever have: the machine's RAM or the cgroup's limit."""
    limits = [int(text) for folder in _cgroup_folders("memory", root) if is_number(text := _memory_limit(folder))]
    return min([_meminfo(root).get("MemTotal", UNLIMITED), *limits])


def memory_available(root: str = ROOT) -> int:
    """Bytes that can be used now without swapping or being killed; a huge number where the system does not say."""
    free = _meminfo(root).get("MemAvailable", UNLIMITED)
    for folder in _cgroup_folders("memory", root):
        limit = _memory_limit(folder)
        if not is_number(limit) or int(limit) >= UNLIMITED:
            continue
        used = (read_text(folder, "memory.current") or read_text(folder, "memory.usage_in_bytes")).strip()
        if is_number(used):
            # Clean page cache is charged to the group but is given up under pressure.
            stat = dict(line.split(" ", 1) for line in read_text(folder, "memory.stat").splitlines() if " " in line)
            cache = stat.get("inactive_file", stat.get("total_inactive_file", "0"))
            free = min(free, int(limit) - int(used) + (int(cache) if is_number(cache) else 0))
    return max(0, free)


def _memory_limit(folder: str) -> str:
    """The group's limit as text: a number, "max" or ""."""
    return (read_text(folder, "memory.max") or read_text(folder, "memory.limit_in_bytes")).strip()


def _meminfo(root: str) -> dict[str, int]:
    """The fields of /proc/meminfo in bytes; RAM alone where the system has no such file."""
    fields: dict[str, int] = {}
    for line in read_text(root, "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        number = value.split()[0] if value.split() else ""
        if is_number(number):
            fields[name] = int(number) * 1024
    if not fields and root == ROOT and "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        fields["MemTotal"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return fields


def is_number(text: str) -> bool:
    return text.strip().isdecimal()


@functools.cache
def _cgroup_folders(controller: str, root: str) -> list[str]:
    """Every folder that limits this process for `controller`, from its own group up to the root of the mount.

    Inside a container the path in /proc/self/cgroup can be the host's and not exist here; its parents still end at the
    mount's root, which is then the container's own group.
    """
    limits = {"cpu": ("cpu.max", "cpu.cfs_quota_us"), "memory": ("memory.max", "memory.limit_in_bytes")}[controller]
    folders: list[str] = []
    base = os.path.join(root, "sys/fs/cgroup")
    for line in read_text(root, "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        group = path.strip("/")
        if number == "0" and not controllers:
            mounts = [base, os.path.join(base, "unified")]
        elif controller in controllers.split(","):
            mounts = [os.path.join(base, controllers), os.path.join(base, controller)]
        else:
            continue
        for mount in mounts:
            parts = group.split("/") if group else []
            folders += [os.path.join(mount, *parts[:depth]) for depth in range(len(parts), -1, -1)]
    return [folder for folder in dict.fromkeys(folders) if any(read_text(folder, name) for name in limits)]
