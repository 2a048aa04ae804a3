define void @kernel(ptr %buffers, i64 %lo, i64 %hi) nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" {
entry:
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
  %loop8.i = phi i64 [ %lo, %entry ], [ %loop8.i.next, %loop8.end ]
  %v9 = trunc i64 %loop8.i to i32
  %v10 = mul nsw i32 %v9, 30
  br label %loop11
loop11:
  %loop11.i = phi i32 [ 0, %loop8 ], [ %loop11.i.next, %loop11.end ]
  %v12 = mul nsw i32 %loop11.i, 10
  %v13 = add nsw i32 %v12, %v10
  br label %loop14
loop14:
  %loop14.i = phi i32 [ 0, %loop11 ], [ %loop14.i.next, %loop14.end ]
  %v15 = add nsw i32 %v13, %loop14.i
  %v16 = getelementptr float, ptr %v1, i32 %v15
  %v17 = getelementptr float, ptr %v3, i32 %v15
  %v18 = load float, ptr %v17, align 4
  %v19 = getelementptr float, ptr %v5, i32 %v15
  %v20 = load float, ptr %v19, align 4
  %v21 = getelementptr float, ptr %v7, i32 %v15
  %v22 = load float, ptr %v21, align 4
  %v23 = fmul contract float %v20, %v22
  %v24 = fadd contract float %v18, %v23
  store float %v24, ptr %v16, align 4
  br label %loop14.end
loop14.end:
  %loop14.i.next = add nuw nsw i32 %loop14.i, 1
  %loop14.more = icmp ult i32 %loop14.i.next, 10
  br i1 %loop14.more, label %loop14, label %loop14.exit
loop14.exit:
  br label %loop11.end
loop11.end:
  %loop11.i.next = add nuw nsw i32 %loop11.i, 1
  %loop11.more = icmp ult i32 %loop11.i.next, 3
  br i1 %loop11.more, label %loop11, label %loop11.exit
loop11.exit:
  br label %loop8.end
loop8.end:
  %loop8.i.next = add nuw nsw i64 %loop8.i, 1
  %loop8.more = icmp ult i64 %loop8.i.next, %hi
  br i1 %loop8.more, label %loop8, label %loop8.exit
loop8.exit:
  ret void
}
