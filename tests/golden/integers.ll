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
  %v9 = mul nsw i32 %loop8.i, 4
  %v10 = getelementptr i32, ptr %v1, i32 %v9
  %v11 = getelementptr i8, ptr %v3, i32 %v9
  %v12 = load <4 x i8>, ptr %v11, align 1
  %v13 = icmp ne <4 x i8> %v12, splat (i8 0)
  %v14 = getelementptr i32, ptr %v5, i32 %v9
  %v15 = load <4 x i32>, ptr %v14, align 4
  %v16 = getelementptr i32, ptr %v7, i32 %v9
  %v17 = load <4 x i32>, ptr %v16, align 4
  %v18 = mul <4 x i32> %v15, %v17
  %v19 = mul <4 x i32> %v17, splat (i32 -1)
  %v20 = add <4 x i32> %v15, %v19
  %v21 = select <4 x i1> %v13, <4 x i32> %v18, <4 x i32> %v20
  store <4 x i32> %v21, ptr %v10, align 4
  br label %loop8.end
loop8.end:
  %loop8.i.next = add nuw nsw i32 %loop8.i, 1
  %loop8.more = icmp ult i32 %loop8.i.next, 10
  br i1 %loop8.more, label %loop8, label %loop8.exit
loop8.exit:
  ret void
}
