define void @kernel(ptr %buffers, i64 %lo, i64 %hi) nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" {
entry:
  %zeros = alloca [4 x i8], align 64
  store [4 x i8] zeroinitializer, ptr %zeros, align 64
  %v0 = getelementptr ptr, ptr %buffers, i64 0
  %v1 = load ptr, ptr %v0
  %v2 = getelementptr ptr, ptr %buffers, i64 1
  %v3 = load ptr, ptr %v2
  br label %loop4
loop4:
  %loop4.i = phi i32 [ 0, %entry ], [ %loop4.i.next, %loop4.end ]
  %v5 = mul nsw i32 %loop4.i, 13
  %v6 = mul nsw i32 %loop4.i, 10
  br label %loop7
loop7:
  %loop7.i = phi i32 [ 0, %loop4 ], [ %loop7.i.next, %loop7.end ]
  %v8 = add nsw i32 %v5, %loop7.i
  %v9 = getelementptr float, ptr %v1, i32 %v8
  %v10 = add nsw i32 %v6, %loop7.i
  %v11 = add nsw i32 %v10, -1
  %v12 = icmp slt i32 %loop7.i, 1
  %v13 = xor i1 %v12, true
  %v14 = icmp slt i32 %loop7.i, 11
  %v15 = and i1 %v13, %v14
  %v16 = getelementptr float, ptr %v3, i32 %v10
  %v17 = getelementptr float, ptr %v16, i64 -1
  %v18 = select i1 %v15, ptr %v17, ptr %zeros
  %v19 = load float, ptr %v18, align 4
  store float %v19, ptr %v9, align 4
  br label %loop7.end
loop7.end:
  %loop7.i.next = add nuw nsw i32 %loop7.i, 1
  %loop7.more = icmp ult i32 %loop7.i.next, 13
  br i1 %loop7.more, label %loop7, label %loop7.exit
loop7.exit:
  br label %loop4.end
loop4.end:
  %loop4.i.next = add nuw nsw i32 %loop4.i, 1
  %loop4.more = icmp ult i32 %loop4.i.next, 6
  br i1 %loop4.more, label %loop4, label %loop4.exit
loop4.exit:
  ret void
}
