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
  %v7 = call i32 @llvm.expect.i32(i32 %loop6.i, i32 0)
  %v8 = mul nsw i32 %v7, 4
  %v9 = call i32 @llvm.smin.i32(i32 %v8, i32 2)
  %v10 = mul nsw i32 %v9, 10
  %v11 = mul nsw i32 %v9, 8
  br label %loop12
loop12:
  %loop12.i = phi i32 [ 0, %loop6 ], [ %loop12.i.next, %loop12.end ]
  %v13 = mul nsw i32 %loop12.i, 10
  %v14 = add nsw i32 %v10, %v13
  %v15 = mul nsw i32 %loop12.i, 8
  %v16 = add nsw i32 %v11, %v15
  %v23 = getelementptr float, ptr %v3, i32 %v16
  br label %loop17
loop17:
  %loop17.i = phi i32 [ 0, %loop12 ], [ %loop17.i.next, %loop17.end ]
  %v18 = add nsw i32 %v14, %loop17.i
  %v19 = getelementptr float, ptr %v1, i32 %v18
  %v28 = getelementptr float, ptr %v5, i32 %loop17.i
  br label %loop20
loop20:
  %loop20.i = phi i32 [ 0, %loop17 ], [ %loop20.i.next, %loop20.end ]
  %v21 = phi float [ 0x0000000000000000, %loop17 ], [ %v32, %loop20.end ]
  %p24.walked = phi ptr [ %v23, %loop17 ], [ %p24.next, %loop20.end ]
  %p29.walked = phi ptr [ %v28, %loop17 ], [ %p29.next, %loop20.end ]
  %p24 = call ptr @llvm.launder.invariant.group.p0(ptr %p24.walked)
  %p29 = call ptr @llvm.launder.invariant.group.p0(ptr %p29.walked)
  %v22 = add nsw i32 %v16, %loop20.i
  %v25 = load float, ptr %p24, align 4
  %v26 = mul nsw i32 %loop20.i, 10
  %v27 = add nsw i32 %loop17.i, %v26
  %v30 = load float, ptr %p29, align 4
  %v31 = fmul contract float %v25, %v30
  %v32 = fadd contract float %v21, %v31
  br label %loop20.end
loop20.end:
  %p24.next = getelementptr float, ptr %p24, i64 1
  %p29.next = getelementptr float, ptr %p29, i64 10
  %loop20.i.next = add nuw nsw i32 %loop20.i, 1
  %loop20.more = icmp ult i32 %loop20.i.next, 8
  br i1 %loop20.more, label %loop20, label %loop20.exit
loop20.exit:
  store float %v32, ptr %v19, align 4
  br label %loop17.end
loop17.end:
  %loop17.i.next = add nuw nsw i32 %loop17.i, 1
  %loop17.more = icmp ult i32 %loop17.i.next, 10
  br i1 %loop17.more, label %loop17, label %loop17.exit
loop17.exit:
  br label %loop12.end
loop12.end:
  %loop12.i.next = add nuw nsw i32 %loop12.i, 1
  %loop12.more = icmp ult i32 %loop12.i.next, 4
  br i1 %loop12.more, label %loop12, label %loop12.exit
loop12.exit:
  br label %loop6.end
loop6.end:
  %loop6.i.next = add nuw nsw i32 %loop6.i, 1
  %loop6.more = icmp ult i32 %loop6.i.next, 2
  br i1 %loop6.more, label %loop6, label %loop6.exit
loop6.exit:
  ret void
}
declare i32 @llvm.expect.i32(i32, i32)
declare i32 @llvm.smin.i32(i32, i32)
declare ptr @llvm.launder.invariant.group.p0(ptr)
