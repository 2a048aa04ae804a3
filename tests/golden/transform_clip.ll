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
  %v8 = mul nsw i32 %loop6.i, 2
  %v9 = add nsw i32 %v8, -8
  %v10 = call i32 @llvm.smax.i32(i32 %v9, i32 0)
  %v11 = mul nsw i32 %v10, -1
  %v12 = add nsw i32 %v11, %v8
  %v13 = add nsw i32 %v8, 1
  %v14 = call i32 @llvm.smin.i32(i32 %v13, i32 5)
  %v15 = add nsw i32 %v11, %v14
  %v16 = call i32 @llvm.smax.i32(i32 %v15, i32 0)
  %v21 = getelementptr float, ptr %v3, i32 %v12
  %v25 = getelementptr float, ptr %v5, i32 %v10
  %loop17.any = icmp sgt i32 %v16, 0
  br i1 %loop17.any, label %loop17, label %loop17.exit
loop17:
  %loop17.i = phi i32 [ 0, %loop6 ], [ %loop17.i.next, %loop17.end ]
  %v18 = phi float [ 0x0000000000000000, %loop6 ], [ %v29, %loop17.end ]
  %p22.walked = phi ptr [ %v21, %loop6 ], [ %p22.next, %loop17.end ]
  %p26.walked = phi ptr [ %v25, %loop6 ], [ %p26.next, %loop17.end ]
  %p22 = call ptr @llvm.launder.invariant.group.p0(ptr %p22.walked)
  %p26 = call ptr @llvm.launder.invariant.group.p0(ptr %p26.walked)
  %v19 = mul nsw i32 %loop17.i, -1
  %v20 = add nsw i32 %v12, %v19
  %v23 = load float, ptr %p22, align 4
  %v24 = add nsw i32 %v10, %loop17.i
  %v27 = load float, ptr %p26, align 4
  %v28 = fmul contract float %v23, %v27
  %v29 = fadd contract float %v18, %v28
  br label %loop17.end
loop17.end:
  %p22.next = getelementptr float, ptr %p22, i64 -1
  %p26.next = getelementptr float, ptr %p26, i64 1
  %loop17.i.next = add nuw nsw i32 %loop17.i, 1
  %loop17.more = icmp ult i32 %loop17.i.next, %v16
  br i1 %loop17.more, label %loop17, label %loop17.exit
loop17.exit:
  %v30 = phi float [ 0x0000000000000000, %loop6 ], [ %v29, %loop17.end ]
  store float %v30, ptr %v7, align 4
  br label %loop6.end
loop6.end:
  %loop6.i.next = add nuw nsw i32 %loop6.i, 1
  %loop6.more = icmp ult i32 %loop6.i.next, 9
  br i1 %loop6.more, label %loop6, label %loop6.exit
loop6.exit:
  ret void
}
declare i32 @llvm.smax.i32(i32, i32)
declare i32 @llvm.smin.i32(i32, i32)
declare ptr @llvm.launder.invariant.group.p0(ptr)
