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
  %loop8.i = phi i32 [ 0, %entry ], [ %loop8.i.next, %loop8.end ]
  %v9 = mul nsw i32 %loop8.i, 30
  %v10 = mul nsw i32 %loop8.i, 6
  %v11 = mul nsw i32 %loop8.i, 9
  %v12 = mul nsw i32 %loop8.i, 12
  br label %loop13
loop13:
  %loop13.i = phi i32 [ 0, %loop8 ], [ %loop13.i.next, %loop13.end ]
  %v14 = add nsw i32 %v9, %loop13.i
  %v15 = getelementptr float, ptr %v1, i32 %v14
  store float 0x0000000000000000, ptr %v15, align 4
  br label %loop13.end
loop13.end:
  %loop13.i.next = add nuw nsw i32 %loop13.i, 1
  %loop13.more = icmp ult i32 %loop13.i.next, 3
  br i1 %loop13.more, label %loop13, label %loop13.exit
loop13.exit:
  br label %loop16
loop16:
  %loop16.i = phi i32 [ 0, %loop13.exit ], [ %loop16.i.next, %loop16.end ]
  %v17 = add nsw i32 %v9, %loop16.i
  %v18 = add nsw i32 %v17, 3
  %v19 = getelementptr float, ptr %v1, i32 %v17
  %v20 = getelementptr float, ptr %v19, i64 3
  %v21 = add nsw i32 %v10, %loop16.i
  %v22 = getelementptr float, ptr %v3, i32 %v21
  %v23 = load float, ptr %v22, align 4
  store float %v23, ptr %v20, align 4
  br label %loop16.end
loop16.end:
  %loop16.i.next = add nuw nsw i32 %loop16.i, 1
  %loop16.more = icmp ult i32 %loop16.i.next, 6
  br i1 %loop16.more, label %loop16, label %loop16.exit
loop16.exit:
  br label %loop24
loop24:
  %loop24.i = phi i32 [ 0, %loop16.exit ], [ %loop24.i.next, %loop24.end ]
  %v25 = add nsw i32 %v9, %loop24.i
  %v26 = add nsw i32 %v25, 9
  %v27 = getelementptr float, ptr %v1, i32 %v25
  %v28 = getelementptr float, ptr %v27, i64 9
  %v29 = add nsw i32 %v11, %loop24.i
  %v30 = getelementptr float, ptr %v5, i32 %v29
  %v31 = load float, ptr %v30, align 4
  %v32 = fmul contract float %v31, 0x4000000000000000
  store float %v32, ptr %v28, align 4
  br label %loop24.end
loop24.end:
  %loop24.i.next = add nuw nsw i32 %loop24.i, 1
  %loop24.more = icmp ult i32 %loop24.i.next, 9
  br i1 %loop24.more, label %loop24, label %loop24.exit
loop24.exit:
  br label %loop33
loop33:
  %loop33.i = phi i32 [ 0, %loop24.exit ], [ %loop33.i.next, %loop33.end ]
  %v34 = add nsw i32 %v9, %loop33.i
  %v35 = add nsw i32 %v34, 18
  %v36 = getelementptr float, ptr %v1, i32 %v34
  %v37 = getelementptr float, ptr %v36, i64 18
  %v38 = add nsw i32 %v12, %loop33.i
  %v39 = getelementptr float, ptr %v7, i32 %v38
  %v40 = load float, ptr %v39, align 4
  store float %v40, ptr %v37, align 4
  br label %loop33.end
loop33.end:
  %loop33.i.next = add nuw nsw i32 %loop33.i, 1
  %loop33.more = icmp ult i32 %loop33.i.next, 12
  br i1 %loop33.more, label %loop33, label %loop33.exit
loop33.exit:
  br label %loop8.end
loop8.end:
  %loop8.i.next = add nuw nsw i32 %loop8.i, 1
  %loop8.more = icmp ult i32 %loop8.i.next, 4
  br i1 %loop8.more, label %loop8, label %loop8.exit
loop8.exit:
  ret void
}
