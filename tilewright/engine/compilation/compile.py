"""From a kernel to something that runs. In: a kernel (SINK) and a device. Out: a `CompiledKernel`.
Equal kernels are compiled once in a process, and once on a machine where the disk cache holds their binary."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tilewright.base.config import options
from tilewright.base.events import emit, listeners, stage_timer, stage_times
from tilewright.base.forks import renewed_lock
from tilewright.base.records import mutable_record, replace
from tilewright.engine.compilation.stored import (
    is_usable,
    kernel_key,
    kernel_options,
    read_kernel,
    wants_results_alone,
    write_kernel,
)
from tilewright.engine.compilation.workers import Workers, tuned_interpreter
from tilewright.engine.recent import KERNELS_PER_PLAN, RecentTable
from tilewright.graph.ops import Ops
from tilewright.graph.records import Opt, Program
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.runtime.cache import cache_key, read_entry, write_entry
from tilewright.runtime.device import Driver, open_driver

_kernels: RecentTable[tuple[object, ...], CompiledKernel] = RecentTable(KERNELS_PER_PLAN)
_loaded: RecentTable[tuple[str, str], LoadedKernel] = RecentTable(KERNELS_PER_PLAN)  # by stored key and device
_ready: set[str] = set()  # the devices whose compiler is loaded, or being loaded
kernel_tables: list[RecentTable[Any, Any]] = [_kernels, _loaded]  # and those of other modules that hold kernels
_lock = renewed_lock()


@mutable_record
class Draft:
    """A kernel whose text is rendered. Its binary is read from disk, or made by `compile_drafts`, on any thread."""

    ast: UOp
    device: str
    optimised: UOp
    program: Program
    source: str
    key: str
    binary: bytes | None
    stage_times: dict[str, int]
    stored_key: str | None = None
    is_from_disk: bool = False

    def finish(self, binary: bytes, nanoseconds: int) -> None:
        """Takes the binary, and the time that the compiler took for it, and stores it."""
        self.binary = binary
        self.stage_times["compile"] = nanoseconds
        if "stage" in listeners:
            emit("stage", name="compile", nanoseconds=nanoseconds, about=self.program.name)
        write_entry(self.key, self.binary)
        self.store()

    def store(self) -> None:
        """Writes the kernel to the disk cache, where other processes find it without rendering its text. Writing a file
        takes longer than composing its contents and holds no interpreter lock, so the compiling thread does it."""
        if self.stored_key is not None:
            launch = open_driver(self.device).launch_of(self.program)
            write_kernel(self.stored_key, self.program, launch, self.key)


def compile_drafts(drafts: Sequence[Draft]) -> None:
    """Compiles drafts of one device together. The time of each is in proportion to its text."""
    start = time.perf_counter_ns()
    binaries = open_driver(drafts[0].device).compile_texts([draft.source for draft in drafts])
    spent, length = time.perf_counter_ns() - start, sum(len(draft.source) for draft in drafts)
    for draft, binary in zip(drafts, binaries, strict=True):
        draft.finish(binary, spent * len(draft.source) // max(length, 1))


@mutable_record
class LoadedKernel:
    """A kernel ready to launch. `stored_key` is its key in the disk cache; None where it is not stored."""

    name: str
    device: str
    operations: int
    bytes_moved: int
    handle: Any
    stored_key: str | None


@mutable_record
class CompiledKernel(LoadedKernel):
    """A kernel with its graph and text, which are made again on request if the kernel was loaded from disk."""

    ast: UOp
    stage_times: dict[str, int]  # nanoseconds each stage took; no "compile" where the binary was on disk
    draft: Draft | None = None

    def _drafted(self) -> Draft:
        if self.draft is None:
            self.draft = draft_kernel(self.ast, self.device, None)
        return self.draft

    @property
    def optimised(self) -> UOp:
        return self._drafted().optimised

    @property
    def program(self) -> Program:
        return self._drafted().program

    @property
    def source(self) -> str:
        return self._drafted().source


def compile_kernel(ast: UOp, device: str) -> CompiledKernel:
    return compile_kernels([(ast, device)])[0]


def compile_kernels(wanted: Sequence[tuple[UOp, str]], workers: Workers | None = None) -> list[CompiledKernel]:
    """Compiles all kernels, equal ones once. While the text of one is rendered, the threads of `start_compilers`
    compile those before it."""
    keys = [_kernel_key(ast, device) for ast, device in wanted]
    with _lock:
        if any(key not in _kernels for key in keys):
            missing = {key: pair for key, pair in zip(keys, wanted, strict=True) if key not in _kernels}
            threads = min((open_driver(device).compile_threads for _, device in missing.values()), default=1)
            if workers is not None and workers.threads < threads:
                _compile_missing(missing, workers)
            else:
                with tuned_interpreter(), Workers(threads - 1) as others:
                    _compile_missing(missing, others)
        return [_kernels[key] for key in keys]


def is_compiled(ast: UOp, device: str) -> bool:
    """Whether this process has compiled the kernel."""
    return _kernel_key(ast, device) in _kernels


def trim_kernels() -> None:
    """Drops the least recently used kernels, and what refers to them."""
    with _lock:
        for table in kernel_tables:
            table.trim()


def start_compilers(device: str) -> Workers:
    """Threads for `compile_kernels`, at most as many as the device allows besides the caller's. They first load the
    compiler, while the caller is still scheduling."""
    driver = open_driver(device)
    workers = Workers(driver.compile_threads - 1)
    if workers.threads and device not in _ready:
        _ready.add(device)
        workers.give(driver.load_compiler)
    return workers


def _kernel_key(ast: UOp, device: str) -> tuple[object, ...]:
    target = open_driver(device).target
    return (ast, device, target, kernel_options())


def _compile_missing(wanted: dict[tuple[object, ...], tuple[UOp, str]], workers: Workers) -> None:
    # Like the stages, not needed by a start that finds every kernel on disk.
    from tilewright.engine.compilation.batches import Batches

    drafts: dict[tuple[object, ...], Draft] = {}
    stored_keys: dict[tuple[object, ...], str | None] = {}
    alike: dict[tuple[object, ...], tuple[object, ...]] = {}  # of several devices with one target, the first's key
    twins: dict[tuple[object, ...], tuple[object, ...]] = {}
    texts: dict[str, Draft] = {}  # the drafts that are compiled here, by the key of their text
    batches = Batches(workers, compile_drafts)
    longest = _longest_of(wanted)
    for group in _groups_of(wanted, longest):
        drafted: list[Draft] = []
        for key in group:
            ast, device = wanted[key]
            stored_keys[key] = _stored_key(ast, device)
            found = _load_stored(stored_keys[key], device)
            if found is not None:
                facts = (found.name, device, found.operations, found.bytes_moved, found.handle, found.stored_key)
                _kernels[key] = CompiledKernel(*facts, ast, {})
                continue
            first = alike.setdefault((ast, *key[2:]), key)
            if first != key:
                twins[key] = first
                continue
            longer = drafts.get(longest.get(key, ()))
            draft = _shorter(longer, ast) or draft_kernel(ast, device, _found_opts(ast, device))
            draft.stored_key = stored_keys[key]
            drafts[key] = draft
            drafted.append(draft)
        _share_texts([draft for draft in drafted if draft.binary is None])
        for draft in drafted:
            if draft.binary is not None:
                workers.give(draft.store)
            elif texts.setdefault(draft.key, draft) is draft:
                kind = draft.device if open_driver(draft.device).joins_texts else ""
                batches.give(draft, kind, len(draft.source))
    with stage_timer("compile"):  # the wait for the last of them: the others ran in parallel with earlier stages
        workers.finish()
    for draft in drafts.values():
        if draft.binary is None:
            draft.binary = texts[draft.key].binary
            draft.store()
    for key, first in twins.items():
        drafts[key] = replace(drafts[first], device=wanted[key][1], stage_times={}, stored_key=stored_keys[key])
    for key, draft in drafts.items():
        made = _kernels[key] = _finished(draft)
        if not listeners and not options.BEAM:
            # The graphs and the text take more memory than all else together, and can be made again from the kernel.
            made.draft = None


def _groups_of(
    wanted: dict[tuple[object, ...], tuple[UOp, str]], longest: dict[tuple[object, ...], tuple[object, ...]]
) -> list[list[tuple[object, ...]]]:
    """The kernels in the order in which they are drafted. Those with the same ops, of which some may have one text, are
    drafted together: after the others, so that the compilers have work meanwhile. Of these, those that may share the
    text of a longer one come last."""
    if len(wanted) == 1 or options.NOOPT or not wants_results_alone():
        return [[key] for key in wanted]
    groups: dict[object, list[tuple[object, ...]]] = {}
    for key, (ast, _) in sorted(wanted.items(), key=lambda item: item[0] in longest):
        groups.setdefault((*key[1:], *_ops_of(ast)), []).append(key)
    return sorted(groups.values(), key=lambda group: len(group) > 1)


def _ops_of(ast: UOp) -> list[Op]:
    """The ops of a kernel without those of its positions: where two sizes are equal, two products are one node."""
    order = toposort(ast)
    return [
        node.op for node in order if node.op is not Ops.CONST and not (node.dtype.is_int and node.op.is_elementwise)
    ]


def _share_texts(drafts: list[Draft]) -> None:
    """Gives drafts of one device whose texts differ in numbers alone one text, which reads the numbers of each."""
    if len(drafts) < 2:
        return
    driver = open_driver(drafts[0].device)
    for draft, (source, numbers) in zip(drafts, driver.share_texts([draft.source for draft in drafts]), strict=True):
        if numbers:
            draft.source, draft.key = source, _program_key(source, driver)
            draft.program = replace(draft.program, numbers=numbers)
            draft.binary = read_entry(draft.key)


def _longest_of(wanted: dict[tuple[object, ...], tuple[UOp, str]]) -> dict[tuple[object, ...], tuple[object, ...]]:
    """For each kernel that may share the text of a longer one, the longest."""
    if len(wanted) == 1 or options.NOOPT or not wants_results_alone():
        return {}
    from tilewright.graph.kernels.lengths import longest_of  # not needed by a first result of one kernel

    shared = {key: ast for key, (ast, device) in wanted.items() if open_driver(device).shares_kernels}
    return longest_of([(key, key[1:], ast) for key, ast in shared.items()])


def _shorter(longest: Draft | None, ast: UOp) -> Draft | None:
    """The draft of a kernel with the text of a longer one; None where it needs its own."""
    if longest is None:
        return None
    # Not needed by a start that finds every kernel on disk, either.
    from tilewright.engine.compilation.shorter import shorter_program

    program = shorter_program(longest.program, longest.ast, ast)
    return None if program is None else replace(longest, ast=ast, program=program, stage_times={})


def load_kernels(wanted: Sequence[tuple[str, str]]) -> list[LoadedKernel] | None:
    """Kernels by their disk key and device; None where one of them is no longer on disk."""
    made: list[LoadedKernel] = []
    with _lock:
        for stored_key, device in wanted:
            found = _loaded.get((stored_key, device)) or _load_stored(stored_key, device)
            if found is None:
                return None
            _loaded[stored_key, device] = found
            made.append(found)
    return made


def _stored_key(ast: UOp, device: str) -> str | None:
    """The key of the kernel in the disk cache; None where it is not stored."""
    driver = open_driver(device)
    if not driver.keeps_launches or not is_usable():
        return None
    with stage_timer("cache"):
        return kernel_key(ast, driver.target)


def _load_stored(stored_key: str | None, device: str) -> LoadedKernel | None:
    if stored_key is None:
        return None
    with stage_timer("cache"):
        found = read_kernel(stored_key)
    if found is None:
        return None
    with stage_timer("load"):
        try:
            handle = open_driver(device).load_kept(found.binary, found.launch)
        except Exception as error:  # of any kind: the kernel is compiled and stored again
            emit("warning", message=f"the stored kernel {stored_key} cannot be loaded: {error!r}", location=None)
            return None
    return LoadedKernel(found.name, device, found.operations, found.bytes_moved, handle, stored_key)


def _found_opts(ast: UOp, device: str) -> tuple[Opt, ...] | None:
    """The opts that search found for a kernel that states none; None stands for a template's."""
    if not options.BEAM or options.NOOPT or ast.arg.opts_to_apply is not None or ast.arg.sections > 1:
        return None
    if open_driver(device).target.is_reference:
        return None
    # Loads what starts processes, which a program without BEAM never needs.
    from tilewright.engine.compilation.search.beam import find_opts

    return find_opts(ast, device)


def compile_with(ast: UOp, device: str, opts: tuple[Opt, ...] | None) -> CompiledKernel:
    """Compiles a kernel with these opts, without looking into the caches of the process."""
    draft = draft_kernel(ast, device, opts)
    if draft.binary is None:
        with stage_timer("compile"):
            compile_drafts([draft])
    return _finished(draft)


def draft_kernel(ast: UOp, device: str, opts: tuple[Opt, ...] | None) -> Draft:
    """All stages but the compiler: the text of the kernel, and its binary where the disk has it."""
    # A process that finds every kernel on disk does not import these, which would be a quarter of its start-up time.
    from tilewright.codegen.pipeline import lower
    from tilewright.kernel.optimise import optimise

    driver = open_driver(device)
    before = dict(stage_times)
    optimised = optimise(ast, driver.target, opts)
    program = lower(optimised, driver.target, ast)
    with stage_timer("render"):
        source = driver.render(program)
    with stage_timer("cache"):
        key = _program_key(source, driver)
        binary = read_entry(key)
    spent = {name: total - before.get(name, 0) for name, total in stage_times.items() if total != before.get(name)}
    return Draft(ast, device, optimised, program, source, key, binary, spent, is_from_disk=binary is not None)


def _program_key(source: str, driver: Driver) -> str:
    """The key of a text's binary in the disk cache."""
    return cache_key("program", source, driver.target.toolchain, driver.target.arch)


def _finished(draft: Draft) -> CompiledKernel:
    driver = open_driver(draft.device)
    assert draft.binary is not None
    with stage_timer("load") as timer:
        handle = _loaded_handle(draft, driver)
    draft.stage_times["load"] = timer.total_ns
    facts = (draft.program.name, draft.device, draft.program.flops, draft.program.bytes_moved, handle, draft.stored_key)
    compiled = CompiledKernel(*facts, draft.ast, draft.stage_times, draft)
    if options.VERIFY and not driver.target.is_reference:
        from tilewright.engine.compilation.verify import verify_optimised

        verify_optimised(draft.ast, draft.program, draft.optimised, draft.source, handle, draft.device)
    emit(
        "kernel-compiled",
        name=draft.program.name,
        device=draft.device,
        source=draft.source,
        stage_times=draft.stage_times,
        kernel=compiled,
    )
    return compiled


def _loaded_handle(draft: Draft, driver: Driver) -> Any:
    """The loaded kernel of a draft. A binary from disk that cannot be loaded is ignored, and the kernel is compiled."""
    assert draft.binary is not None
    try:
        return driver.load(draft.binary, draft.program)
    except Exception as error:
        if not draft.is_from_disk:
            raise
        emit("warning", message=f"the stored program {draft.key} cannot be loaded: {error!r}", location=None)
    draft.is_from_disk = False
    compile_drafts([draft])
    return driver.load(draft.binary, draft.program)


def forget_kernels() -> None:
    """Empties the caches of the process, for tests and measurements."""
    for table in kernel_tables:
        table.clear()
