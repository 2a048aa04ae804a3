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
  br label %loop6
loop6:
  %loop6.i = phi i64 [ 0, %entry ], [ %loop6.i.next, %loop6.end ]
  %v7 = mul nsw i64 %loop6.i, 20
  %v8 = mul nsw i64 %loop6.i, 5
  %v9 = add nsw i64 %v8, 5
  br label %loop10
loop10:
  %loop10.i = phi i64 [ 0, %loop6 ], [ %loop10.i.next, %loop10.end ]
  %v11 = add nsw i64 %v7, %loop10.i
  br label %loop12
loop12:
  %loop12.i = phi i64 [ 0, %loop10 ], [ %loop12.i.next, %loop12.end ]
  %v13 = mul nsw i64 %loop12.i, 4
  %v14 = add nsw i64 %v11, %v13
  %v15 = add nsw i64 %v8, %loop12.i
  %v16 = icmp slt i64 %v15, 9
  %v17 = getelementptr float, ptr %v1, i64 %v14
  %v18 = select i1 %v16, ptr %v17, ptr %trash
  store float 0x0000000000000000, ptr %v18, align 4
  br label %loop12.end
loop12.end:
  %loop12.i.next = add nuw nsw i64 %loop12.i, 1
  %loop12.more = icmp ult i64 %loop12.i.next, 5
  br i1 %loop12.more, label %loop12, label %loop12.exit
loop12.exit:
  br label %loop19
loop19:
  %loop19.i = phi i64 [ 0, %loop12.exit ], [ %loop19.i.next, %loop19.end ]
  %v20 = getelementptr i32, ptr %v3, i64 %loop19.i
  %v21 = load i32, ptr %v20, align 4
  %v22 = sext i32 %v21 to i64
  %v23 = add nsw i64 %v22, 2147483650
  %v24 = urem i64 %v23, 5
  %v25 = mul nsw i64 %v24, 4
  %v26 = add nsw i64 %v11, %v25
  %v27 = icmp slt i64 %v22, %v8
  %v28 = xor i1 %v27, true
  %v29 = icmp slt i64 %v22, %v9
  %v30 = and i1 %v28, %v29
  %v31 = icmp slt i32 %v21, 9
  %v32 = and i1 %v30, %v31
  %v33 = getelementptr float, ptr %v1, i64 %v26
  %v34 = select i1 %v32, ptr %v33, ptr %zeros
  %v35 = load float, ptr %v34, align 4
  %v36 = mul nsw i64 %loop19.i, 4
  %v37 = add nsw i64 %loop10.i, %v36
  %v38 = getelementptr float, ptr %v5, i64 %v37
  %v39 = load float, ptr %v38, align 4
  %v40 = fadd contract float %v35, %v39
  %v41 = select i1 %v32, ptr %v33, ptr %trash
  store float %v40, ptr %v41, align 4
  br label %loop19.end
loop19.end:
  %loop19.i.next = add nuw nsw i64 %loop19.i, 1
  %loop19.more = icmp ult i64 %loop19.i.next, 12
  br i1 %loop19.more, label %loop19, label %loop19.exit
loop19.exit:
  br label %loop10.end
loop10.end:
  %loop10.i.next = add nuw nsw i64 %loop10.i, 1
  %loop10.more = icmp ult i64 %loop10.i.next, 4
  br i1 %loop10.more, label %loop10, label %loop10.exit
loop10.exit:
  br label %loop6.end
loop6.end:
  %loop6.i.next = add nuw nsw i64 %loop6.i, 1
  %loop6.more = icmp ult i64 %loop6.i.next, 2
  br i1 %loop6.more, label %loop6, label %loop6.exit
loop6.exit:
  ret void
}
