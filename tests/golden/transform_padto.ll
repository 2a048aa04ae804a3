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
  %v9 = mul nsw i32 %loop8.i, 10
  br label %loop10
loop10:
  %loop10.i = phi i32 [ 0, %loop8 ], [ %loop10.i.next, %loop10.end ]
  %v11 = add nsw i32 %v9, %loop10.i
  %v12 = icmp slt i32 %loop10.i, 10
  %v13 = getelementptr float, ptr %v1, i32 %v11
  %v14 = getelementptr float, ptr %v3, i32 %v11
  %v15 = select i1 %v12, ptr %v14, ptr %zeros
  %v16 = load float, ptr %v15, align 4
  %v17 = getelementptr float, ptr %v5, i32 %v11
  %v18 = select i1 %v12, ptr %v17, ptr %zeros
  %v19 = load float, ptr %v18, align 4
  %v20 = getelementptr float, ptr %v7, i32 %v11
  %v21 = select i1 %v12, ptr %v20, ptr %zeros
  %v22 = load float, ptr %v21, align 4
  %v23 = fmul contract float %v19, %v22
  %v24 = fadd contract float %v16, %v23
  %v25 = select i1 %v12, ptr %v13, ptr %trash
  store float %v24, ptr %v25, align 4
  br label %loop10.end
loop10.end:
  %loop10.i.next = add nuw nsw i32 %loop10.i, 1
  %loop10.more = icmp ult i32 %loop10.i.next, 16
  br i1 %loop10.more, label %loop10, label %loop10.exit
loop10.exit:
  br label %loop8.end
loop8.end:
  %loop8.i.next = add nuw nsw i32 %loop8.i, 1
  %loop8.more = icmp ult i32 %loop8.i.next, 12
  br i1 %loop8.more, label %loop8, label %loop8.exit
loop8.exit:
  ret void
}
