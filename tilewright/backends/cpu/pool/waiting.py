"""How the threads of the pool wait. In: an instruction set and an operating system. Out: functions as text of an LLVM
module: `@spin` polls a word, `@sleep_on` and `@wake` use the system, `@avoid` and `@roam` set the cores on which a
thread may wake up. Part of `pool_ir`, which replaces the words in capitals."""

# Bytes of a set of cores, as the system takes it. A machine with more cores refuses it, and no core is avoided.
CORES_BYTES = 1024
_FUTEX_CALL = {"x86_64": 202, "aarch64": 98, "riscv64": 98}

_SLEEP_BY_FUTEX = """
declare i64 @syscall(i64, ...)

define internal void @sleep_on(ptr %word, i32 %expected) #0 {
  %result = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %word, i64 128, i32 %expected, ptr null, ptr null, i64 0)
  ret void
}

define internal void @wake(ptr %word, i32 %count) #0 {
  %result = call i64 (i64, ...) @syscall(i64 FUTEX, ptr %word, i64 129, i32 %count, ptr null, ptr null, i64 0)
  ret void
}

define internal void @prepare_sleep() #0 {
  ret void
}
"""

_SLEEP_BY_CONDITION = """
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)

define internal void @prepare_sleep() #0 {
  %mutex_made = call i32 @pthread_mutex_init(ptr MUTEX, ptr null)
  %condition_made = call i32 @pthread_cond_init(ptr CONDITION, ptr null)
  ret void
}

define internal void @sleep_on(ptr %word, i32 %expected) #0 {
  %locked = call i32 @pthread_mutex_lock(ptr MUTEX)
  br label %check
check:
  %value = load atomic i32, ptr %word seq_cst, align 4
  %same = icmp eq i32 %value, %expected
  br i1 %same, label %wait, label %leave
wait:
  %waited = call i32 @pthread_cond_wait(ptr CONDITION, ptr MUTEX)
  br label %check
leave:
  %unlocked = call i32 @pthread_mutex_unlock(ptr MUTEX)
  ret void
}

define internal void @wake(ptr %word, i32 %count) #0 {
  %locked = call i32 @pthread_mutex_lock(ptr MUTEX)
  %woken = call i32 @pthread_cond_broadcast(ptr CONDITION)
  %unlocked = call i32 @pthread_mutex_unlock(ptr MUTEX)
  ret void
}
"""

# Linux under KVM often wakes a thread on the core of its waker: the two share it for milliseconds beside an idle core.
# So a worker that sleeps does so off the caller's core.
_CORES = """
declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
declare i32 @memcmp(ptr, ptr, i64)

define internal i32 @core() #0 {
  %core = call i32 @sched_getcpu()
  ret i32 %core
}

; Leave %core, where this thread may run elsewhere. %sets gets the cores it had, and those it has now.
define internal void @avoid(i32 %core, ptr %sets) #0 {
entry:
  %others = getelementptr i8, ptr %sets, i64 CORES_BYTES
  %told = call i32 @sched_getaffinity(i32 0, i64 CORES_BYTES, ptr %sets)
  %told_again = call i32 @sched_getaffinity(i32 0, i64 CORES_BYTES, ptr %others)
  %all_told = or i32 %told, %told_again
  %known = icmp eq i32 %all_told, 0
  %byte = lshr i32 %core, 3
  %listed = icmp ult i32 %byte, CORES_BYTES
  %possible = and i1 %known, %listed
  br i1 %possible, label %move, label %leave
move:
  %place = getelementptr i8, ptr %others, i32 %byte
  %flags = load i8, ptr %place, align 1
  %bit = and i32 %core, 7
  %shift = trunc i32 %bit to i8
  %flag = shl i8 1, %shift
  %mask = xor i8 %flag, -1
  %rest = and i8 %flags, %mask
  store i8 %rest, ptr %place, align 1
  ; Refused where no core is left.
  %moved = call i32 @sched_setaffinity(i32 0, i64 CORES_BYTES, ptr %others)
  br label %leave
leave:
  ret void
}

; Run anywhere again, unless someone else has said meanwhile where this thread is to run.
define internal void @roam(ptr %sets) #0 {
entry:
  %now = alloca [CORES_BYTES x i8], align 8
  %others = getelementptr i8, ptr %sets, i64 CORES_BYTES
  %told = call i32 @sched_getaffinity(i32 0, i64 CORES_BYTES, ptr %now)
  %changed = call i32 @memcmp(ptr %now, ptr %others, i64 CORES_BYTES)
  %either = or i32 %told, %changed
  %same = icmp eq i32 %either, 0
  br i1 %same, label %free, label %leave
free:
  %freed = call i32 @sched_setaffinity(i32 0, i64 CORES_BYTES, ptr %sets)
  br label %leave
leave:
  ret void
}
"""

_ANY_CORE = """
define internal i32 @core() #0 {
  ret i32 0
}

define internal void @avoid(i32 %core, ptr %sets) #0 {
  ret void
}

define internal void @roam(ptr %sets) #0 {
  ret void
}
"""

_SPIN = """
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_yield()
PAUSE_DECLARATION

define internal i64 @now() #0 {
  %time = alloca [2 x i64], align 8
  %result = call i32 @clock_gettime(i32 MONOTONIC, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %place = getelementptr i64, ptr %time, i64 1
  %nanoseconds = load i64, ptr %place, align 8
  %scaled = mul i64 %seconds, 1000000000
  %sum = add i64 %scaled, %nanoseconds
  ret i64 %sum
}

; Spin until (the 64-bit word at %place, and %mask) equals %wanted is %until, at most %limit long. Gives whether it
; came. After MIN_SPIN the core is offered to others now and then: to those of this process as to any.
define internal i1 @spin(ptr %place, i64 %mask, i64 %wanted, i1 %until, i64 %limit) #0 {
entry:
  %least = load i64, ptr MIN_SPIN, align 8
  %start = call i64 @now()
  br label %round
round:
  br label %look
look:
  %step = phi i32 [ 0, %round ], [ %next, %pause ]
  %word = load atomic i64, ptr %place acquire, align 8
  %part = and i64 %word, %mask
  %equal = icmp eq i64 %part, %wanted
  %come = icmp eq i1 %equal, %until
  br i1 %come, label %yes, label %pause
pause:
  PAUSE
  %next = add i32 %step, 1
  %full = icmp eq i32 %next, 32
  br i1 %full, label %clock, label %look
clock:
  %time = call i64 @now()
  %spent = sub i64 %time, %start
  %over = icmp sgt i64 %spent, %limit
  br i1 %over, label %no, label %offer
offer:
  %long = icmp sgt i64 %spent, %least
  br i1 %long, label %yield, label %round
yield:
  %yielded = call i32 @sched_yield()
  br label %round
yes:
  ret i1 true
no:
  ret i1 false
}
"""


def text(instruction_set: str, system: str) -> str:
    sleep = _SLEEP_BY_CONDITION if _futex_call(instruction_set, system) is None else _SLEEP_BY_FUTEX
    return sleep + (_CORES if system == "linux" else _ANY_CORE) + _SPIN


def words(instruction_set: str, system: str) -> dict[str, str]:
    """The texts that replace the words in capitals, except addresses in the pool's state."""
    declaration, pause = {
        "x86_64": ("declare void @llvm.x86.sse2.pause()", "call void @llvm.x86.sse2.pause()"),
        # `isb` waits some ten nanoseconds, as the x86 instruction does; ARM's own `yield` is over at once.
        "aarch64": ("declare void @llvm.aarch64.isb(i32)", "call void @llvm.aarch64.isb(i32 15)"),
    }.get(instruction_set, ("", ""))
    futex = str(_futex_call(instruction_set, system))
    monotonic = "6" if system == "darwin" else "1"
    return {
        "PAUSE_DECLARATION": declaration,
        "PAUSE": pause,
        # Another thread may have loaded the code that is called next. An ARM sees that after an `isb` of its own.
        "FETCH_ANEW": pause if instruction_set == "aarch64" else "",
        "FUTEX": futex,
        "MONOTONIC": monotonic,
        "CORES_BYTES": str(CORES_BYTES),
    }


def _futex_call(instruction_set: str, system: str) -> int | None:
    """The number of the system call; None where there is none, and a condition variable is used."""
    return _FUTEX_CALL.get(instruction_set) if system == "linux" else None
