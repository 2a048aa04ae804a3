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
  %v9 = mul nsw i32 %loop8.i, 40
  br label %loop10
loop10:
  %loop10.i = phi i32 [ 0, %loop8 ], [ %loop10.i.next, %loop10.end ]
  %v11 = add nsw i32 %v9, %loop10.i
  %v12 = getelementptr float, ptr %v1, i32 %v11
  %v13 = getelementptr float, ptr %v3, i32 %v11
  %v14 = load float, ptr %v13, align 4
  %v15 = getelementptr float, ptr %v13, i64 10
  %v16 = load float, ptr %v15, align 4
  %v17 = getelementptr float, ptr %v13, i64 20
  %v18 = load float, ptr %v17, align 4
  %v19 = getelementptr float, ptr %v13, i64 30
  %v20 = load float, ptr %v19, align 4
  %v21 = getelementptr float, ptr %v5, i32 %v11
  %v22 = load float, ptr %v21, align 4
  %v23 = getelementptr float, ptr %v21, i64 10
  %v24 = load float, ptr %v23, align 4
  %v25 = getelementptr float, ptr %v21, i64 20
  %v26 = load float, ptr %v25, align 4
  %v27 = getelementptr float, ptr %v21, i64 30
  %v28 = load float, ptr %v27, align 4
  %v29 = getelementptr float, ptr %v7, i32 %v11
  %v30 = load float, ptr %v29, align 4
  %v31 = getelementptr float, ptr %v29, i64 10
  %v32 = load float, ptr %v31, align 4
  %v33 = getelementptr float, ptr %v29, i64 20
  %v34 = load float, ptr %v33, align 4
  %v35 = getelementptr float, ptr %v29, i64 30
  %v36 = load float, ptr %v35, align 4
  %v37 = fmul contract float %v22, %v30
  %v38 = fmul contract float %v24, %v32
  %v39 = fmul contract float %v26, %v34
  %v40 = fmul contract float %v28, %v36
  %v41 = fadd contract float %v14, %v37
  %v42 = fadd contract float %v16, %v38
  %v43 = fadd contract float %v18, %v39
  %v44 = fadd contract float %v20, %v40
  %v45 = getelementptr float, ptr %v12, i64 10
  %v46 = getelementptr float, ptr %v12, i64 20
  %v47 = getelementptr float, ptr %v12, i64 30
  store float %v41, ptr %v12, align 4
  store float %v42, ptr %v45, align 4
  store float %v43, ptr %v46, align 4
  store float %v44, ptr %v47, align 4
  br label %loop10.end
loop10.end:
  %loop10.i.next = add nuw nsw i32 %loop10.i, 1
  %loop10.more = icmp ult i32 %loop10.i.next, 10
  br i1 %loop10.more, label %loop10, label %loop10.exit
loop10.exit:
  br label %loop8.end
loop8.end:
  %loop8.i.next = add nuw nsw i32 %loop8.i, 1
  %loop8.more = icmp ult i32 %loop8.i.next, 3
  br i1 %loop8.more, label %loop8, label %loop8.exit
loop8.exit:
  ret void
}
