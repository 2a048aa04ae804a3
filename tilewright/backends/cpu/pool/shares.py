"""How a command's chunks are dealt to the threads of the pool, as functions of its LLVM module (`ir.py`): `@deal` cuts
them into shares, and `@pick` takes one for a thread that has claimed one by the ticket. A share is one 64-bit word, its
first chunk in the lower half and the end in the upper one."""

SHARES_IR = """
; The chunk for a thread that was promised one by the ticket: the next of its own share, or the last of another's. There
; are at least as many chunks in all shares as promises, so the search ends.
define internal i32 @pick(i32 %self) #0 {
entry:
  %shares = load i32, ptr DESCRIPTION_5, align 8
  %first = urem i32 %self, %shares
  br label %look
look:
  %number = phi i32 [ %first, %entry ], [ %number, %take ], [ %other, %pass ]
  %wide = zext i32 %number to i64
  %place = getelementptr [16 x i64], ptr SHARES, i64 %wide
  %share = load atomic i64, ptr %place monotonic, align 8
  %low = trunc i64 %share to i32
  %shifted = lshr i64 %share, 32
  %high = trunc i64 %shifted to i32
  %some = icmp ult i32 %low, %high
  br i1 %some, label %take, label %pass
take:
  %is_own = icmp eq i32 %number, %self
  %change = select i1 %is_own, i64 1, i64 -4294967296
  %rest = add i64 %share, %change
  %pair = cmpxchg ptr %place, i64 %share, i64 %rest monotonic monotonic
  %taken = extractvalue { i64, i1 } %pair, 1
  br i1 %taken, label %leave, label %look
pass:
  %following = add i32 %number, 1
  %is_past = icmp eq i32 %following, %shares
  %other = select i1 %is_past, i32 0, i32 %following
  br label %look
leave:
  %last = sub i32 %high, 1
  %index = select i1 %is_own, i32 %low, i32 %last
  ret i32 %index
}

; Cut the chunks into shares, one for each thread where there are as many.
define internal void @deal(i64 %chunks) #0 {
entry:
  %workers = load atomic i32, ptr WORKERS monotonic, align 4
  %threads = add i32 %workers, 1
  %most = zext i32 %threads to i64
  %shares = call i64 @llvm.umin.i64(i64 %most, i64 %chunks)
  %shares_short = trunc i64 %shares to i32
  store i32 %shares_short, ptr DESCRIPTION_5, align 8
  br label %next
next:
  %number = phi i64 [ 0, %entry ], [ %following, %next ]
  %low = phi i64 [ 0, %entry ], [ %high, %next ]
  %following = add i64 %number, 1
  %scaled = mul i64 %following, %chunks
  %high = udiv i64 %scaled, %shares
  %shifted = shl i64 %high, 32
  %share = or i64 %shifted, %low
  %place = getelementptr [16 x i64], ptr SHARES, i64 %number
  store atomic i64 %share, ptr %place monotonic, align 8
  %more = icmp ult i64 %following, %shares
  br i1 %more, label %next, label %leave
leave:
  ret void
}
declare i64 @llvm.umin.i64(i64, i64)
"""
