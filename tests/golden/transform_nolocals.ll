define void @kernel(ptr %buffers, i64 %lo, i64 %hi) nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" {
entry:
  %v0 = getelementptr ptr, ptr %buffers, i64 0
  %v1 = load ptr, ptr %v0
  %v2 = getelementptr ptr, ptr %buffers, i64 1
  %v3 = load ptr, ptr %v2
  %v4 = getelementptr float, ptr %v1, i32 0
  br label %loop5
loop5:
  %loop5.i = phi i32 [ 0, %entry ], [ %loop5.i.next, %loop5.end ]
  %v6 = phi float [ 0x0000000000000000, %entry ], [ %v15, %loop5.end ]
  %v7 = mul nsw i32 %loop5.i, 16
  %v11 = getelementptr float, ptr %v3, i32 %v7
  br label %loop8
loop8:
  %loop8.i = phi i32 [ 0, %loop5 ], [ %loop8.i.next, %loop8.end ]
  %v9 = phi float [ 0x0000000000000000, %loop5 ], [ %v14, %loop8.end ]
  %p12.walked = phi ptr [ %v11, %loop5 ], [ %p12.next, %loop8.end ]
  %p12 = call ptr @llvm.launder.invariant.group.p0(ptr %p12.walked)
  %v10 = add nsw i32 %v7, %loop8.i
  %v13 = load float, ptr %p12, align 4
  %v14 = fadd contract float %v9, %v13
  br label %loop8.end
loop8.end:
  %p12.next = getelementptr float, ptr %p12, i64 1
  %loop8.i.next = add nuw nsw i32 %loop8.i, 1
  %loop8.more = icmp ult i32 %loop8.i.next, 16
  br i1 %loop8.more, label %loop8, label %loop8.exit
loop8.exit:
  %v15 = fadd contract float %v6, %v14
  br label %loop5.end
loop5.end:
  %loop5.i.next = add nuw nsw i32 %loop5.i, 1
  %loop5.more = icmp ult i32 %loop5.i.next, 6
  br i1 %loop5.more, label %loop5, label %loop5.exit
loop5.exit:
  store float %v15, ptr %v4, align 4
  ret void
}
declare ptr @llvm.launder.invariant.group.p0(ptr)
