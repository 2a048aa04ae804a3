define void @kernel(ptr %buffers, i64 %lo, i64 %hi) nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" {
entry:
  %zeros = alloca [4 x i8], align 64
  store [4 x i8] zeroinitializer, ptr %zeros, align 64
  %trash = alloca [4 x i8], align 64
  %v0 = getelementptr ptr, ptr %buffers, i64 0
  %v1 = load ptr, ptr %v0
  %v2 = getelementptr ptr, ptr %buffers, i64 1
  %v3 = load ptr, ptr %v2
  %v4 = getelementptr ptr, ptr %buffers, i64 2
  %v5 = load ptr, ptr %v4
  %v6 = getelementptr ptr, ptr %buffers, i64 3
  %v7 = load ptr, ptr %v6
  br label %loop8
loop8:
  %loop8.i = phi i32 [ 0, %entry ], [ %loop8.i.next, %loop8.end ]
  %v9 = urem i32 %loop8.i, 4
  %v10 = mul nsw i32 %v9, -2
  %v11 = mul nsw i32 %loop8.i, 10
  %v12 = add nsw i32 %v10, %v11
  %v13 = mul nsw i32 %v9, 2
  %v14 = add nsw i32 %v13, 10
  br label %loop15
loop15:
  %loop15.i = phi i32 [ 0, %loop8 ], [ %loop15.i.next, %loop15.end ]
  %v16 = add nsw i32 %v12, %loop15.i
  %v17 = add nsw i32 %loop15.i, 1
  %v18 = icmp slt i32 %v13, %v17
  %v19 = icmp slt i32 %loop15.i, %v14
  %v20 = and i1 %v18, %v19
  %v21 = getelementptr float, ptr %v1, i32 %v16
  %v22 = getelementptr float, ptr %v3, i32 %v16
  %v23 = select i1 %v20, ptr %v22, ptr %zeros
  %v24 = load float, ptr %v23, align 4
  %v25 = getelementptr float, ptr %v5, i32 %v16
  %v26 = select i1 %v20, ptr %v25, ptr %zeros
  %v27 = load float, ptr %v26, align 4
  %v28 = getelementptr float, ptr %v7, i32 %v16
  %v29 = select i1 %v20, ptr %v28, ptr %zeros
  %v30 = load float, ptr %v29, align 4
  %v31 = fmul contract float %v27, %v30
  %v32 = fadd contract float %v24, %v31
  %v33 = select i1 %v20, ptr %v21, ptr %trash
  store float %v32, ptr %v33, align 4
  br label %loop15.end
loop15.end:
  %loop15.i.next = add nuw nsw i32 %loop15.i, 1
  %loop15.more = icmp ult i32 %loop15.i.next, 24
  br i1 %loop15.more, label %loop15, label %loop15.exit
loop15.exit:
  br label %loop8.end
loop8.end:
  %loop8.i.next = add nuw nsw i32 %loop8.i, 1
  %loop8.more = icmp ult i32 %loop8.i.next, 12
  br i1 %loop8.more, label %loop8, label %loop8.exit
loop8.exit:
  ret void
}
