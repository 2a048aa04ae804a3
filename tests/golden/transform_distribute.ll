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
  %v7 = getelementptr float, ptr %v1, i32 %loop6.i
  store float 0x0000000000000000, ptr %v7, align 4
  br label %loop6.end
loop6.end:
  %loop6.i.next = add nuw nsw i32 %loop6.i, 1
  %loop6.more = icmp ult i32 %loop6.i.next, 36
  br i1 %loop6.more, label %loop6, label %loop6.exit
loop6.exit:
  br label %loop8
loop8:
  %loop8.i = phi i32 [ 0, %loop6.exit ], [ %loop8.i.next, %loop8.end ]
  %v9 = getelementptr i32, ptr %v3, i32 %loop8.i
  %v10 = load i32, ptr %v9, align 4
  %v11 = call i32 @llvm.smax.i32(i32 %v10, i32 0)
  %v12 = call i32 @llvm.smin.i32(i32 %v11, i32 8)
  %v13 = mul nsw i32 %v12, 4
  %v14 = icmp eq i32 %v10, %v12
  %v15 = mul nsw i32 %loop8.i, 4
  br label %loop16
loop16:
  %loop16.i = phi i32 [ 0, %loop8 ], [ %loop16.i.next, %loop16.end ]
  %v17 = add nsw i32 %v13, %loop16.i
  %v18 = getelementptr float, ptr %v1, i32 %v17
  %v19 = load float, ptr %v18, align 4
  %v20 = add nsw i32 %v15, %loop16.i
  %v21 = getelementptr float, ptr %v5, i32 %v20
  %v22 = load float, ptr %v21, align 4
  %v23 = select i1 %v14, float %v22, float 0x0000000000000000
  %v24 = fadd contract float %v19, %v23
  store float %v24, ptr %v18, align 4
  br label %loop16.end
loop16.end:
  %loop16.i.next = add nuw nsw i32 %loop16.i, 1
  %loop16.more = icmp ult i32 %loop16.i.next, 4
  br i1 %loop16.more, label %loop16, label %loop16.exit
loop16.exit:
  br label %loop8.end
loop8.end:
  %loop8.i.next = add nuw nsw i32 %loop8.i, 1
  %loop8.more = icmp ult i32 %loop8.i.next, 12
  br i1 %loop8.more, label %loop8, label %loop8.exit
loop8.exit:
  ret void
}
declare i32 @llvm.smax.i32(i32, i32)
declare i32 @llvm.smin.i32(i32, i32)
