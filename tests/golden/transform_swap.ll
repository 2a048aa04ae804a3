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
  %v20 = getelementptr float, ptr %v5, i32 %loop6.i
  br label %loop7
loop7:
  %loop7.i = phi i32 [ 0, %loop6 ], [ %loop7.i.next, %loop7.end ]
  %v8 = mul nsw i32 %loop7.i, 10
  %v9 = add nsw i32 %loop6.i, %v8
  %v10 = getelementptr float, ptr %v1, i32 %v9
  %v11 = mul nsw i32 %loop7.i, 8
  %v15 = getelementptr float, ptr %v3, i32 %v11
  br label %loop12
loop12:
  %loop12.i = phi i32 [ 0, %loop7 ], [ %loop12.i.next, %loop12.end ]
  %v13 = phi float [ 0x0000000000000000, %loop7 ], [ %v24, %loop12.end ]
  %p16.walked = phi ptr [ %v15, %loop7 ], [ %p16.next, %loop12.end ]
  %p21.walked = phi ptr [ %v20, %loop7 ], [ %p21.next, %loop12.end ]
  %p16 = call ptr @llvm.launder.invariant.group.p0(ptr %p16.walked)
  %p21 = call ptr @llvm.launder.invariant.group.p0(ptr %p21.walked)
  %v14 = add nsw i32 %v11, %loop12.i
  %v17 = load float, ptr %p16, align 4
  %v18 = mul nsw i32 %loop12.i, 10
  %v19 = add nsw i32 %loop6.i, %v18
  %v22 = load float, ptr %p21, align 4
  %v23 = fmul contract float %v17, %v22
  %v24 = fadd contract float %v13, %v23
  br label %loop12.end
loop12.end:
  %p16.next = getelementptr float, ptr %p16, i64 1
  %p21.next = getelementptr float, ptr %p21, i64 10
  %loop12.i.next = add nuw nsw i32 %loop12.i, 1
  %loop12.more = icmp ult i32 %loop12.i.next, 8
  br i1 %loop12.more, label %loop12, label %loop12.exit
loop12.exit:
  store float %v24, ptr %v10, align 4
  br label %loop7.end
loop7.end:
  %loop7.i.next = add nuw nsw i32 %loop7.i, 1
  %loop7.more = icmp ult i32 %loop7.i.next, 6
  br i1 %loop7.more, label %loop7, label %loop7.exit
loop7.exit:
  br label %loop6.end
loop6.end:
  %loop6.i.next = add nuw nsw i32 %loop6.i, 1
  %loop6.more = icmp ult i32 %loop6.i.next, 10
  br i1 %loop6.more, label %loop6, label %loop6.exit
loop6.exit:
  ret void
}
declare ptr @llvm.launder.invariant.group.p0(ptr)
