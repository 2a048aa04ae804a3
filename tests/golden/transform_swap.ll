define void @kernel(ptr %buffers, i64 %lo, i64 %hi) nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" {
entry:
  %v0 = getelementptr ptr, ptr %buffers, i64 0
  %v1 = load ptr, ptr %v0
  %v2 = getelementptr ptr, ptr %buffers, i64 1
  %v3 = load ptr, ptr %v2
  %v4 = getelementptr ptr, ptr %buffers, i64 2
  %v5 = load ptr, ptr %v4
  br label %loop6
loop6:
  %loop6.i = phi i32 [ 0, %entry ], [ %loop6.i.next, %loop6.end ]
  br label %loop7
loop7:
  %loop7.i = phi i32 [ 0, %loop6 ], [ %loop7.i.next, %loop7.end ]
  %v8 = mul nsw i32 %loop7.i, 10
  %v9 = add nsw i32 %loop6.i, %v8
  %v10 = getelementptr float, ptr %v1, i32 %v9
  %v11 = mul nsw i32 %loop7.i, 8
  br label %loop12
loop12:
  %loop12.i = phi i32 [ 0, %loop7 ], [ %loop12.i.next, %loop12.end ]
  %v13 = phi float [ 0x0000000000000000, %loop7 ], [ %v22, %loop12.end ]
  %v14 = add nsw i32 %v11, %loop12.i
  %v15 = getelementptr float, ptr %v3, i32 %v14
  %v16 = load float, ptr %v15, align 4
  %v17 = mul nsw i32 %loop12.i, 10
  %v18 = add nsw i32 %loop6.i, %v17
  %v19 = getelementptr float, ptr %v5, i32 %v18
  %v20 = load float, ptr %v19, align 4
  %v21 = fmul contract float %v16, %v20
  %v22 = fadd contract float %v13, %v21
  br label %loop12.end
loop12.end:
  %loop12.i.next = add nuw nsw i32 %loop12.i, 1
  %loop12.more = icmp ult i32 %loop12.i.next, 8
  br i1 %loop12.more, label %loop12, label %loop12.exit
loop12.exit:
  store float %v22, ptr %v10, align 4
  br label %loop7.end
loop7.end:
  %loop7.i.next = add nuw nsw i32 %loop7.i, 1
  %loop7.more = icmp ult i32 %loop7.i.next, 6
  br i1 %loop7.more, label %loop7, label %loop7.exit
loop7.exit:
  br label %loop6.end
loop6.end:
  %loop6.i.next = add nuw nsw i32 %loop6.i, 1
  %loop6.more = icmp ult i32 %loop6.i.next, 10
  br i1 %loop6.more, label %loop6, label %loop6.exit
loop6.exit:
  ret void
}
