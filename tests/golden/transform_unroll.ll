define void @kernel(ptr %buffers, i64 %lo, i64 %hi) nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" {
entry:
  %v0 = getelementptr ptr, ptr %buffers, i64 0
  %v1 = load ptr, ptr %v0
  %v2 = getelementptr ptr, ptr %buffers, i64 1
  %v3 = load ptr, ptr %v2
  br label %loop4
loop4:
  %loop4.i = phi i32 [ 0, %entry ], [ %loop4.i.next, %loop4.end ]
  %v5 = getelementptr float, ptr %v1, i32 %loop4.i
  %v6 = mul nsw i32 %loop4.i, 24
  %v11 = getelementptr float, ptr %v3, i32 %v6
  br label %loop7
loop7:
  %loop7.i = phi i32 [ 0, %loop4 ], [ %loop7.i.next, %loop7.end ]
  %v8 = phi float [ 0x0000000000000000, %loop4 ], [ %v23, %loop7.end ]
  %p12.walked = phi ptr [ %v11, %loop4 ], [ %p12.next, %loop7.end ]
  %p12 = call ptr @llvm.launder.invariant.group.p0(ptr %p12.walked)
  %v9 = mul nsw i32 %loop7.i, 4
  %v10 = add nsw i32 %v6, %v9
  %v13 = load float, ptr %p12, align 4
  %v14 = getelementptr float, ptr %p12, i64 1
  %v15 = load float, ptr %v14, align 4
  %v16 = getelementptr float, ptr %p12, i64 2
  %v17 = load float, ptr %v16, align 4
  %v18 = getelementptr float, ptr %p12, i64 3
  %v19 = load float, ptr %v18, align 4
  %v20 = fadd contract float %v8, %v13
  %v21 = fadd contract float %v20, %v15
  %v22 = fadd contract float %v21, %v17
  %v23 = fadd contract float %v22, %v19
  br label %loop7.end
loop7.end:
  %p12.next = getelementptr float, ptr %p12, i64 4
  %loop7.i.next = add nuw nsw i32 %loop7.i, 1
  %loop7.more = icmp ult i32 %loop7.i.next, 6
  br i1 %loop7.more, label %loop7, label %loop7.exit
loop7.exit:
  store float %v23, ptr %v5, align 4
  br label %loop4.end
loop4.end:
  %loop4.i.next = add nuw nsw i32 %loop4.i, 1
  %loop4.more = icmp ult i32 %loop4.i.next, 12
  br i1 %loop4.more, label %loop4, label %loop4.exit
loop4.exit:
  ret void
}
declare ptr @llvm.launder.invariant.group.p0(ptr)
