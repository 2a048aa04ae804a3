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
  %v13 = getelementptr float, ptr %v5, i32 %v7
  br label %loop8
loop8:
  %loop8.i = phi i32 [ 0, %loop6 ], [ %loop8.i.next, %loop8.end ]
  %p10.walked = phi ptr [ %local0, %loop6 ], [ %p10.next, %loop8.end ]
  %p14.walked = phi ptr [ %v13, %loop6 ], [ %p14.next, %loop8.end ]
  %p10 = call ptr @llvm.launder.invariant.group.p0(ptr %p10.walked)
  %p14 = call ptr @llvm.launder.invariant.group.p0(ptr %p14.walked)
  %v9 = mul nsw i32 %loop8.i, 5
  %v11 = mul nsw i32 %loop8.i, 10
  %v12 = add nsw i32 %v7, %v11
  %v15 = getelementptr i8, ptr %p14, i64 480
  call void @llvm.prefetch.p0(ptr %v15, i32 0, i32 3, i32 1)
  %v16 = getelementptr i8, ptr %p14, i64 499
  call void @llvm.prefetch.p0(ptr %v16, i32 0, i32 3, i32 1)
  %v17 = load <5 x float>, ptr %p14, align 4
  store <5 x float> %v17, ptr %p10, align 4
  br label %loop8.end
loop8.end:
  %p10.next = getelementptr float, ptr %p10, i64 5
  %p14.next = getelementptr float, ptr %p14, i64 10
  %loop8.i.next = add nuw nsw i32 %loop8.i, 1
  %loop8.more = icmp ult i32 %loop8.i.next, 8
  br i1 %loop8.more, label %loop8, label %loop8.exit
loop8.exit:
  br label %loop18
loop18:
  %loop18.i = phi i32 [ 0, %loop8.exit ], [ %loop18.i.next, %loop18.end ]
  %v19 = mul nsw i32 %loop18.i, 10
  %v20 = add nsw i32 %v19, %v7
  %v21 = getelementptr float, ptr %v1, i32 %v20
  %v22 = mul nsw i32 %loop18.i, 8
  %v26 = getelementptr float, ptr %v3, i32 %v22
  br label %loop23
loop23:
  %loop23.i = phi i32 [ 0, %loop18 ], [ %loop23.i.next, %loop23.end ]
  %v24 = phi <5 x float> [ splat (float 0x0000000000000000), %loop18 ], [ %v35, %loop23.end ]
  %p27.walked = phi ptr [ %v26, %loop18 ], [ %p27.next, %loop23.end ]
  %p30.walked = phi ptr [ %local0, %loop18 ], [ %p30.next, %loop23.end ]
  %p27 = call ptr @llvm.launder.invariant.group.p0(ptr %p27.walked)
  %p30 = call ptr @llvm.launder.invariant.group.p0(ptr %p30.walked)
  %v25 = add nsw i32 %v22, %loop23.i
  %v28 = load float, ptr %p27, align 4
  %v29 = mul nsw i32 %loop23.i, 5
  %v31 = load <5 x float>, ptr %p30, align 4
  %v32 = insertelement <5 x float> poison, float %v28, i64 0
  %v33 = shufflevector <5 x float> %v32, <5 x float> poison, <5 x i32> zeroinitializer
  %v34 = fmul contract <5 x float> %v33, %v31
  %v35 = fadd contract <5 x float> %v24, %v34
  br label %loop23.end
loop23.end:
  %p27.next = getelementptr float, ptr %p27, i64 1
  %p30.next = getelementptr float, ptr %p30, i64 5
  %loop23.i.next = add nuw nsw i32 %loop23.i, 1
  %loop23.more = icmp ult i32 %loop23.i.next, 8
  br i1 %loop23.more, label %loop23, label %loop23.exit
loop23.exit:
  store <5 x float> %v35, ptr %v21, align 4
  br label %loop18.end
loop18.end:
  %loop18.i.next = add nuw nsw i32 %loop18.i, 1
  %loop18.more = icmp ult i32 %loop18.i.next, 6
  br i1 %loop18.more, label %loop18, label %loop18.exit
loop18.exit:
  br label %loop6.end
loop6.end:
  %loop6.i.next = add nuw nsw i32 %loop6.i, 1
  %loop6.more = icmp ult i32 %loop6.i.next, 2
  br i1 %loop6.more, label %loop6, label %loop6.exit
loop6.exit:
  ret void
}
declare ptr @llvm.launder.invariant.group.p0(ptr)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
