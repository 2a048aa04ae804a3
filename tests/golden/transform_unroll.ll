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
  br label %loop7
loop7:
  %loop7.i = phi i32 [ 0, %loop4 ], [ %loop7.i.next, %loop7.end ]
  %v8 = phi float [ 0x0000000000000000, %loop4 ], [ %v22, %loop7.end ]
  %v9 = mul nsw i32 %loop7.i, 4
  %v10 = add nsw i32 %v6, %v9
  %v11 = getelementptr float, ptr %v3, i32 %v10
  %v12 = load float, ptr %v11, align 4
  %v13 = getelementptr float, ptr %v11, i64 1
  %v14 = load float, ptr %v13, align 4
  %v15 = getelementptr float, ptr %v11, i64 2
  %v16 = load float, ptr %v15, align 4
  %v17 = getelementptr float, ptr %v11, i64 3
  %v18 = load float, ptr %v17, align 4
  %v19 = fadd contract float %v8, %v12
  %v20 = fadd contract float %v19, %v14
  %v21 = fadd contract float %v20, %v16
  %v22 = fadd contract float %v21, %v18
  br label %loop7.end
loop7.end:
  %loop7.i.next = add nuw nsw i32 %loop7.i, 1
  %loop7.more = icmp ult i32 %loop7.i.next, 6
  br i1 %loop7.more, label %loop7, label %loop7.exit
loop7.exit:
  store float %v22, ptr %v5, align 4
  br label %loop4.end
loop4.end:
  %loop4.i.next = add nuw nsw i32 %loop4.i, 1
  %loop4.more = icmp ult i32 %loop4.i.next, 12
  br i1 %loop4.more, label %loop4, label %loop4.exit
loop4.exit:
  ret void
}
