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
  %v6 = phi float [ 0x0000000000000000, %entry ], [ %v14, %loop5.end ]
  %v7 = mul nsw i32 %loop5.i, 16
  br label %loop8
loop8:
  %loop8.i = phi i32 [ 0, %loop5 ], [ %loop8.i.next, %loop8.end ]
  %v9 = phi float [ 0x0000000000000000, %loop5 ], [ %v13, %loop8.end ]
  %v10 = add nsw i32 %v7, %loop8.i
  %v11 = getelementptr float, ptr %v3, i32 %v10
  %v12 = load float, ptr %v11, align 4
  %v13 = fadd contract float %v9, %v12
  br label %loop8.end
loop8.end:
  %loop8.i.next = add nuw nsw i32 %loop8.i, 1
  %loop8.more = icmp ult i32 %loop8.i.next, 16
  br i1 %loop8.more, label %loop8, label %loop8.exit
loop8.exit:
  %v14 = fadd contract float %v6, %v13
  br label %loop5.end
loop5.end:
  %loop5.i.next = add nuw nsw i32 %loop5.i, 1
  %loop5.more = icmp ult i32 %loop5.i.next, 6
  br i1 %loop5.more, label %loop5, label %loop5.exit
loop5.exit:
  store float %v14, ptr %v4, align 4
  ret void
}
