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
  %v7 = mul nsw i32 %loop6.i, 4
  %v8 = call i32 @llvm.smin.i32(i32 %v7, i32 2)
  %v9 = mul nsw i32 %v8, 10
  %v10 = mul nsw i32 %v8, 8
  br label %loop11
loop11:
  %loop11.i = phi i32 [ 0, %loop6 ], [ %loop11.i.next, %loop11.end ]
  %v12 = mul nsw i32 %loop11.i, 10
  %v13 = add nsw i32 %v9, %v12
  %v14 = mul nsw i32 %loop11.i, 8
  %v15 = add nsw i32 %v10, %v14
  br label %loop16
loop16:
  %loop16.i = phi i32 [ 0, %loop11 ], [ %loop16.i.next, %loop16.end ]
  %v17 = add nsw i32 %v13, %loop16.i
  %v18 = getelementptr float, ptr %v1, i32 %v17
  br label %loop19
loop19:
  %loop19.i = phi i32 [ 0, %loop16 ], [ %loop19.i.next, %loop19.end ]
  %v20 = phi float [ 0x0000000000000000, %loop16 ], [ %v29, %loop19.end ]
  %v21 = add nsw i32 %v15, %loop19.i
  %v22 = getelementptr float, ptr %v3, i32 %v21
  %v23 = load float, ptr %v22, align 4
  %v24 = mul nsw i32 %loop19.i, 10
  %v25 = add nsw i32 %loop16.i, %v24
  %v26 = getelementptr float, ptr %v5, i32 %v25
  %v27 = load float, ptr %v26, align 4
  %v28 = fmul contract float %v23, %v27
  %v29 = fadd contract float %v20, %v28
  br label %loop19.end
loop19.end:
  %loop19.i.next = add nuw nsw i32 %loop19.i, 1
  %loop19.more = icmp ult i32 %loop19.i.next, 8
  br i1 %loop19.more, label %loop19, label %loop19.exit
loop19.exit:
  store float %v29, ptr %v18, align 4
  br label %loop16.end
loop16.end:
  %loop16.i.next = add nuw nsw i32 %loop16.i, 1
  %loop16.more = icmp ult i32 %loop16.i.next, 10
  br i1 %loop16.more, label %loop16, label %loop16.exit
loop16.exit:
  br label %loop11.end
loop11.end:
  %loop11.i.next = add nuw nsw i32 %loop11.i, 1
  %loop11.more = icmp ult i32 %loop11.i.next, 4
  br i1 %loop11.more, label %loop11, label %loop11.exit
loop11.exit:
  br label %loop6.end
loop6.end:
  %loop6.i.next = add nuw nsw i32 %loop6.i, 1
  %loop6.more = icmp ult i32 %loop6.i.next, 2
  br i1 %loop6.more, label %loop6, label %loop6.exit
loop6.exit:
  ret void
}
declare i32 @llvm.smin.i32(i32, i32)
