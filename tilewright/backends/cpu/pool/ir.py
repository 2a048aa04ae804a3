"""The thread pool in LLVM IR. In: an instruction set and an operating system. Out: the text of an LLVM module, so that
users need no C compiler. `threads` binds the symbol `tw_state` to a zeroed block of `STATE_BYTES` bytes and calls
`tw_call` (which calls `tw_run`) and `tw_stop`.

How a parallel command runs. The caller deals the chunks into shares, one for each thread, and writes the description
and then the ticket, one 64-bit word with a generation in its upper half and the number of unclaimed chunks in its lower
half. A thread claims a chunk by lowering that number with a compare-and-swap; a thread with a claim may read what the
caller wrote, because the caller does not continue before all chunks are counted in `finished`. The chunk is the next
one of the thread's own share, whose data is in its cache from the command before, or the last one of another share, so
that all threads end together. A worker that arrives late finds no chunk and does nothing. Nothing waits for a thread
that claimed no chunk, so a worker that is slow to wake up costs nothing. Idle threads spin for a while, then sleep on
the ticket's generation (`waiting`); seq_cst order between 'publish the ticket, read the sleepers' and 'count as a
sleeper, read the ticket' makes a lost wake-up impossible.

One caller at a time has the workers. Another one, from a second Python thread or from inside a kernel, runs its command
alone on its own thread: it never waits, so nothing can deadlock.
"""

import re
import sys

from tilewright.backends.cpu.host.system import machine
from tilewright.backends.cpu.pool import waiting
from tilewright.backends.cpu.pool.python_call import CALL_IR
from tilewright.backends.cpu.pool.shares import SHARES_IR

MAXIMUM_THREADS = 256

# Offsets in the state block of the names in capitals in the text. Words that different threads write are on different
# pairs of cache lines, and so is each of SHARES. GENERATION is the upper half of TICKET: the processors supported are
# little-endian.
OFFSETS = (
    {"TICKET": 0, "GENERATION": 4, "FINISHED": 128, "CALLER_WAITS": 132, "SLEEPERS": 256}
    | {f"DESCRIPTION_{field}": 384 + 8 * field for field in range(6)}
    | {"CALLER_CORE": 448}
    | {"OWNER": 512, "STARTED": 516, "WORKERS": 520, "STOP": 524, "MIN_SPIN": 528, "MAX_SPIN": 536}
    | {"MUTEX": 640, "CONDITION": 768, "HANDLES": 1024, "SHARES": 1024 + 8 * MAXIMUM_THREADS}
)
STATE_BYTES = OFFSETS["SHARES"] + 128 * MAXIMUM_THREADS

_POOL = """
@tw_state = external global i8
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_join(i64, ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

; Take chunks and run them until none is left; then count them as finished.
define internal void @work(i32 %self) #0 {
entry:
  br label %look
look:
  %done = phi i32 [ 0, %entry ], [ %done, %take ], [ %more, %run ]
  %total = phi i32 [ 0, %entry ], [ %total, %take ], [ %chunks, %run ]
  %ticket = load atomic i64, ptr TICKET acquire, align 8
  %left = trunc i64 %ticket to i32
  %none = icmp eq i32 %left, 0
  br i1 %none, label %count, label %take
take:
  %lowered = sub i64 %ticket, 1
  %pair = cmpxchg weak ptr TICKET, i64 %ticket, i64 %lowered acq_rel acquire
  %taken = extractvalue { i64, i1 } %pair, 1
  br i1 %taken, label %run, label %look
run:
  %function = load ptr, ptr DESCRIPTION_0, align 8
  %buffers = load ptr, ptr DESCRIPTION_1, align 8
  %extent = load i64, ptr DESCRIPTION_2, align 8
  %grain = load i64, ptr DESCRIPTION_3, align 8
  %chunks = load i32, ptr DESCRIPTION_4, align 8
  %index = call i32 @pick(i32 %self)
  %wide = zext i32 %index to i64
  %low = mul i64 %wide, %grain
  %room = sub i64 %extent, %low
  %last = icmp slt i64 %room, %grain
  %size = select i1 %last, i64 %room, i64 %grain
  %high = add i64 %low, %size
  FETCH_ANEW
  call void %function(ptr %buffers, i64 %low, i64 %high)
  %more = add i32 %done, 1
  br label %look
count:
  %idle = icmp eq i32 %done, 0
  br i1 %idle, label %leave, label %add
add:
  %before = atomicrmw add ptr FINISHED, i32 %done seq_cst
  %after = add i32 %before, %done
  %complete = icmp eq i32 %after, %total
  br i1 %complete, label %signal, label %leave
signal:
  %waits = load atomic i32, ptr CALLER_WAITS seq_cst, align 4
  %asleep = icmp ne i32 %waits, 0
  br i1 %asleep, label %rouse, label %leave
rouse:
  call void @wake(ptr FINISHED, i32 1)
  br label %leave
leave:
  ret void
}

define internal ptr @worker(ptr %number) #0 {
entry:
  %sets = alloca [2 x [CORES_BYTES x i8]], align 8
  %self = ptrtoint ptr %number to i32
  %least = load i64, ptr MIN_SPIN, align 8
  %most = load i64, ptr MAX_SPIN, align 8
  br label %idle
idle:
  %limit = phi i64 [ %least, %entry ], [ %most, %busy ], [ %learnt, %risen ], [ %learnt, %rouse ]
  %stop = load atomic i32, ptr STOP acquire, align 4
  %ended = icmp ne i32 %stop, 0
  br i1 %ended, label %leave, label %wait
wait:
  %start = call i64 @now()
  %come = call i1 @spin(ptr TICKET, i64 4294967295, i64 0, i1 false, i64 %limit)
  br i1 %come, label %busy, label %doze
busy:
  call void @work(i32 %self)
  br label %idle
doze:
  %others = atomicrmw add ptr SLEEPERS, i32 1 seq_cst
  %ticket = load atomic i64, ptr TICKET seq_cst, align 8
  %left = trunc i64 %ticket to i32
  %nothing = icmp eq i32 %left, 0
  %stopping = load atomic i32, ptr STOP seq_cst, align 4
  %running = icmp eq i32 %stopping, 0
  %sleepy = and i1 %nothing, %running
  br i1 %sleepy, label %sleep, label %risen
sleep:
  %shifted = lshr i64 %ticket, 32
  %generation = trunc i64 %shifted to i32
  %caller_core = load atomic i32, ptr CALLER_CORE monotonic, align 4
  call void @avoid(i32 %caller_core, ptr %sets)
  call void @sleep_on(ptr GENERATION, i32 %generation)
  call void @roam(ptr %sets)
  br label %risen
risen:
  %sleeping = atomicrmw sub ptr SLEEPERS, i32 1 seq_cst
  ; The next pause is taken to be as long as this one.
  %end = call i64 @now()
  %pause = sub i64 %end, %start
  %is_short = icmp slt i64 %pause, %most
  %learnt = select i1 %is_short, i64 %most, i64 %least
  %ticket_now = load atomic i64, ptr TICKET acquire, align 8
  %left_now = trunc i64 %ticket_now to i32
  %work = icmp ugt i32 %left_now, 1
  %company = icmp sgt i32 %sleeping, 1
  %call = and i1 %work, %company
  br i1 %call, label %rouse, label %idle
rouse:
  ; Each one woken wakes two more, so that the caller of a large pool does not pay for every wake-up itself.
  call void @wake(ptr GENERATION, i32 2)
  br label %idle
leave:
  ret ptr null
}

; Start the workers that are still missing, with all signals blocked: they belong to Python's threads.
define internal void @start() noinline #0 {
entry:
  %all = alloca [16 x i64], align 8
  %saved = alloca [16 x i64], align 8
  call void @llvm.memset.p0.i64(ptr %all, i8 -1, i64 128, i1 false)
  %blocked = call i32 @pthread_sigmask(i32 SETMASK, ptr %all, ptr %saved)
  call void @prepare_sleep()
  br label %next
next:
  %started = load i32, ptr STARTED, align 4
  %wanted = load i32, ptr WORKERS, align 4
  %missing = icmp slt i32 %started, %wanted
  br i1 %missing, label %create, label %leave
create:
  %wide = zext i32 %started to i64
  %handle = getelementptr i64, ptr HANDLES, i64 %wide
  %one_more = add i32 %started, 1
  %self = zext i32 %one_more to i64
  %number = inttoptr i64 %self to ptr
  %error = call i32 @pthread_create(ptr %handle, ptr null, ptr @worker, ptr %number)
  %failed = icmp ne i32 %error, 0
  br i1 %failed, label %settle, label %count
count:
  store i32 %one_more, ptr STARTED, align 4
  br label %next
settle:
  ; The system gives no more threads: go on with those there are.
  store atomic i32 %started, ptr WORKERS seq_cst, align 4
  br label %leave
leave:
  %restored = call i32 @pthread_sigmask(i32 SETMASK, ptr %saved, ptr null)
  ret void
}

define internal void @parallel(ptr %function, ptr %buffers, i64 %extent, i64 %asked) noinline #0 {
entry:
  %pair = cmpxchg ptr OWNER, i32 0, i32 1 acquire monotonic
  %owned = extractvalue { i32, i1 } %pair, 1
  br i1 %owned, label %ready, label %alone
alone:
  call void %function(ptr %buffers, i64 0, i64 %extent)
  ret void
ready:
  %core = call i32 @core()
  store atomic i32 %core, ptr CALLER_CORE monotonic, align 4
  %started = load i32, ptr STARTED, align 4
  %wanted = load i32, ptr WORKERS, align 4
  %missing = icmp slt i32 %started, %wanted
  br i1 %missing, label %create, label %describe
create:
  call void @start()
  br label %describe
describe:
  ; At most 2**30 chunks, because their count shares a word with the generation.
  %positive = call i64 @llvm.smax.i64(i64 %asked, i64 1)
  %least = lshr i64 %extent, 30
  %enough = add i64 %least, 1
  %grain = call i64 @llvm.smax.i64(i64 %positive, i64 %enough)
  %upper = add i64 %extent, %grain
  %upper_less = sub i64 %upper, 1
  %chunks = udiv i64 %upper_less, %grain
  %chunks_short = trunc i64 %chunks to i32
  store ptr %function, ptr DESCRIPTION_0, align 8
  store ptr %buffers, ptr DESCRIPTION_1, align 8
  store i64 %extent, ptr DESCRIPTION_2, align 8
  store i64 %grain, ptr DESCRIPTION_3, align 8
  store i32 %chunks_short, ptr DESCRIPTION_4, align 8
  call void @deal(i64 %chunks)
  store atomic i32 0, ptr FINISHED monotonic, align 8
  %old = load atomic i64, ptr TICKET monotonic, align 8
  %bumped = add i64 %old, 4294967296
  %high = and i64 %bumped, -4294967296
  %ticket = or i64 %high, %chunks
  store atomic i64 %ticket, ptr TICKET seq_cst, align 8
  %sleepers = load atomic i32, ptr SLEEPERS seq_cst, align 4
  %asleep = icmp sgt i32 %sleepers, 0
  br i1 %asleep, label %rouse, label %join
rouse:
  %wakes = call i32 @llvm.umin.i32(i32 %chunks_short, i32 2)
  call void @wake(ptr GENERATION, i32 %wakes)
  br label %join
join:
  call void @work(i32 0)
  %finished = load atomic i32, ptr FINISHED acquire, align 8
  %complete = icmp eq i32 %finished, %chunks_short
  br i1 %complete, label %leave, label %wait
wait:
  %limit = load i64, ptr MAX_SPIN, align 8
  %come = call i1 @spin(ptr FINISHED, i64 4294967295, i64 %chunks, i1 true, i64 %limit)
  br i1 %come, label %leave, label %doze
doze:
  store atomic i32 1, ptr CALLER_WAITS seq_cst, align 4
  br label %check
check:
  %counted = load atomic i32, ptr FINISHED seq_cst, align 8
  %all = icmp eq i32 %counted, %chunks_short
  br i1 %all, label %awake, label %sleep
sleep:
  call void @sleep_on(ptr FINISHED, i32 %counted)
  br label %check
awake:
  store atomic i32 0, ptr CALLER_WAITS seq_cst, align 4
  br label %leave
leave:
  store atomic i32 0, ptr OWNER release, align 4
  ret void
}
declare i64 @llvm.smax.i64(i64, i64)
declare i32 @llvm.umin.i32(i32, i32)

define void @tw_run(ptr %commands, i64 %count) #0 {
entry:
  %workers = load atomic i32, ptr WORKERS monotonic, align 4
  %single = icmp slt i32 %workers, 1
  br label %next
next:
  %index = phi i64 [ 0, %entry ], [ %following, %done ]
  %more = icmp slt i64 %index, %count
  br i1 %more, label %command, label %leave
command:
  %place = getelementptr [4 x i64], ptr %commands, i64 %index
  %function = load ptr, ptr %place, align 8
  %place_1 = getelementptr i64, ptr %place, i64 1
  %buffers = load ptr, ptr %place_1, align 8
  %place_2 = getelementptr i64, ptr %place, i64 2
  %extent = load i64, ptr %place_2, align 8
  %place_3 = getelementptr i64, ptr %place, i64 3
  %grain = load i64, ptr %place_3, align 8
  %small = icmp sle i64 %extent, %grain
  %direct = or i1 %small, %single
  br i1 %direct, label %serial, label %split
serial:
  %empty = icmp slt i64 %extent, 1
  br i1 %empty, label %done, label %run
run:
  call void %function(ptr %buffers, i64 0, i64 %extent)
  br label %done
split:
  %some = icmp sgt i64 %extent, 1
  br i1 %some, label %share, label %serial
share:
  call void @parallel(ptr %function, ptr %buffers, i64 %extent, i64 %grain)
  br label %done
done:
  %following = add i64 %index, 1
  br label %next
leave:
  ret void
}

; End all workers and wait for them. Waits for a caller that has them at the moment.
define void @tw_stop() #0 {
entry:
  br label %acquire
acquire:
  %pair = cmpxchg ptr OWNER, i32 0, i32 1 acquire monotonic
  %owned = extractvalue { i32, i1 } %pair, 1
  br i1 %owned, label %stop, label %later
later:
  %yielded = call i32 @sched_yield()
  br label %acquire
stop:
  store atomic i32 0, ptr WORKERS seq_cst, align 4
  store atomic i32 1, ptr STOP seq_cst, align 4
  %before = atomicrmw add ptr TICKET, i64 4294967296 seq_cst
  %started = load i32, ptr STARTED, align 4
  %any = icmp sgt i32 %started, 0
  br i1 %any, label %rouse, label %leave
rouse:
  call void @wake(ptr GENERATION, i32 2147483647)
  br label %join
join:
  %index = phi i32 [ 0, %rouse ], [ %following, %join ]
  %wide = zext i32 %index to i64
  %place = getelementptr i64, ptr HANDLES, i64 %wide
  %handle = load i64, ptr %place, align 8
  %joined = call i32 @pthread_join(i64 %handle, ptr null)
  %following = add i32 %index, 1
  %more = icmp slt i32 %following, %started
  br i1 %more, label %join, label %leave
leave:
  store i32 0, ptr STARTED, align 4
  store atomic i32 0, ptr STOP seq_cst, align 4
  store atomic i32 0, ptr OWNER release, align 4
  ret void
}
"""


def pool_ir(instruction_set: str | None = None, system: str | None = None) -> str:
    """The pool's module for an instruction set and a `sys.platform`, those of this machine unless given.

    Compile it with `llvm.compile_ir(text, optimise=0)`: that takes a third of the time of level 2, and costs 2 ns a
    command. The object depends on nothing else, so it can be cached under `llvm.toolchain()`.
    """
    instruction_set = instruction_set or machine()
    system = system or sys.platform
    words = {name: f"getelementptr (i8, ptr @tw_state, i64 {offset})" for name, offset in OFFSETS.items()}
    words |= {"SETMASK": "3" if system == "darwin" else "2"} | waiting.words(instruction_set, system)
    body = waiting.text(instruction_set, system) + SHARES_IR + _POOL
    text = re.sub(r"\b[A-Z][A-Z_0-9]+\b", lambda match: words[match[0]], body)
    return f"{text}{CALL_IR}\nattributes #0 = {{ nounwind }}\n"
