define void @kernel(ptr %buffers, i64 %lo, i64 %hi) nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" {
entry:
  %local0 = alloca [40 x float], align 64
  %v0 = getelementptr ptr, ptr %buffers, i64 0
  %v1 = load ptr, ptr %v0
  %v2 = getelementptr ptr, ptr %buffers, i64 1
  %v3 = load ptr, ptr %v2
  %v4 = getelementptr ptr, ptr %buffers, i64 2
  %v5 = load ptr, ptr %v4
  br label %loop6
loop6:
  %loop6.i = phi i32 [ 0, %entry ], [ %loop6.i.next, %loop6.end ]
  %v7 = mul nsw i32 %loop6.i, 5
  br label %loop8
loop8:
  %loop8.i = phi i32 [ 0, %loop6 ], [ %loop8.i.next, %loop8.end ]
  %v9 = mul nsw i32 %loop8.i, 5
  %v10 = getelementptr float, ptr %local0, i32 %v9
  %v11 = mul nsw i32 %loop8.i, 10
  %v12 = add nsw i32 %v7, %v11
  %v13 = getelementptr float, ptr %v5, i32 %v12
  %v14 = getelementptr i8, ptr %v13, i64 480
  call void @llvm.prefetch.p0(ptr %v14, i32 0, i32 3, i32 1)
  %v15 = load <5 x float>, ptr %v13, align 4
  store <5 x float> %v15, ptr %v10, align 4
  br label %loop8.end
loop8.end:
  %loop8.i.next = add nuw nsw i32 %loop8.i, 1
  %loop8.more = icmp ult i32 %loop8.i.next, 8
  br i1 %loop8.more, label %loop8, label %loop8.exit
loop8.exit:
  br label %loop16
loop16:
  %loop16.i = phi i32 [ 0, %loop8.exit ], [ %loop16.i.next, %loop16.end ]
  %v17 = mul nsw i32 %loop16.i, 10
  %v18 = add nsw i32 %v17, %v7
  %v19 = getelementptr float, ptr %v1, i32 %v18
  %v20 = mul nsw i32 %loop16.i, 8
  br label %loop21
loop21:
  %loop21.i = phi i32 [ 0, %loop16 ], [ %loop21.i.next, %loop21.end ]
  %v22 = phi <5 x float> [ splat (float 0x0000000000000000), %loop16 ], [ %v32, %loop21.end ]
  %v23 = add nsw i32 %v20, %loop21.i
  %v24 = getelementptr float, ptr %v3, i32 %v23
  %v25 = load float, ptr %v24, align 4
  %v26 = mul nsw i32 %loop21.i, 5
  %v27 = getelementptr float, ptr %local0, i32 %v26
  %v28 = load <5 x float>, ptr %v27, align 4
  %v29 = insertelement <5 x float> poison, float %v25, i64 0
  %v30 = shufflevector <5 x float> %v29, <5 x float> poison, <5 x i32> zeroinitializer
  %v31 = fmul contract <5 x float> %v30, %v28
  %v32 = fadd contract <5 x float> %v22, %v31
  br label %loop21.end
loop21.end:
  %loop21.i.next = add nuw nsw i32 %loop21.i, 1
  %loop21.more = icmp ult i32 %loop21.i.next, 8
  br i1 %loop21.more, label %loop21, label %loop21.exit
loop21.exit:
  store <5 x float> %v32, ptr %v19, align 4
  br label %loop16.end
loop16.end:
  %loop16.i.next = add nuw nsw i32 %loop16.i, 1
  %loop16.more = icmp ult i32 %loop16.i.next, 6
  br i1 %loop16.more, label %loop16, label %loop16.exit
loop16.exit:
  br label %loop6.end
loop6.end:
  %loop6.i.next = add nuw nsw i32 %loop6.i, 1
  %loop6.more = icmp ult i32 %loop6.i.next, 2
  br i1 %loop6.more, label %loop6, label %loop6.exit
loop6.exit:
  ret void
}
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
