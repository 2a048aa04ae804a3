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
  %v16 = load <5 x float>, ptr %p14, align 4
  store <5 x float> %v16, ptr %p10, align 4
  br label %loop8.end
loop8.end:
  %p10.next = getelementptr float, ptr %p10, i64 5
  %p14.next = getelementptr float, ptr %p14, i64 10
  %loop8.i.next = add nuw nsw i32 %loop8.i, 1
  %loop8.more = icmp ult i32 %loop8.i.next, 8
  br i1 %loop8.more, label %loop8, label %loop8.exit
loop8.exit:
  br label %loop17
loop17:
  %loop17.i = phi i32 [ 0, %loop8.exit ], [ %loop17.i.next, %loop17.end ]
  %v18 = mul nsw i32 %loop17.i, 10
  %v19 = add nsw i32 %v18, %v7
  %v20 = getelementptr float, ptr %v1, i32 %v19
  %v21 = mul nsw i32 %loop17.i, 8
  %v25 = getelementptr float, ptr %v3, i32 %v21
  br label %loop22
loop22:
  %loop22.i = phi i32 [ 0, %loop17 ], [ %loop22.i.next, %loop22.end ]
  %v23 = phi <5 x float> [ splat (float 0x0000000000000000), %loop17 ], [ %v34, %loop22.end ]
  %p26.walked = phi ptr [ %v25, %loop17 ], [ %p26.next, %loop22.end ]
  %p29.walked = phi ptr [ %local0, %loop17 ], [ %p29.next, %loop22.end ]
  %p26 = call ptr @llvm.launder.invariant.group.p0(ptr %p26.walked)
  %p29 = call ptr @llvm.launder.invariant.group.p0(ptr %p29.walked)
  %v24 = add nsw i32 %v21, %loop22.i
  %v27 = load float, ptr %p26, align 4
  %v28 = mul nsw i32 %loop22.i, 5
  %v30 = load <5 x float>, ptr %p29, align 4
  %v31 = insertelement <5 x float> poison, float %v27, i64 0
  %v32 = shufflevector <5 x float> %v31, <5 x float> poison, <5 x i32> zeroinitializer
  %v33 = fmul contract <5 x float> %v32, %v30
  %v34 = fadd contract <5 x float> %v23, %v33
  br label %loop22.end
loop22.end:
  %p26.next = getelementptr float, ptr %p26, i64 1
  %p29.next = getelementptr float, ptr %p29, i64 5
  %loop22.i.next = add nuw nsw i32 %loop22.i, 1
  %loop22.more = icmp ult i32 %loop22.i.next, 8
  br i1 %loop22.more, label %loop22, label %loop22.exit
loop22.exit:
  store <5 x float> %v34, ptr %v20, align 4
  br label %loop17.end
loop17.end:
  %loop17.i.next = add nuw nsw i32 %loop17.i, 1
  %loop17.more = icmp ult i32 %loop17.i.next, 6
  br i1 %loop17.more, label %loop17, label %loop17.exit
loop17.exit:
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
