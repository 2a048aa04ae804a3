define void @kernel(ptr %buffers, i64 %lo, i64 %hi) nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" {
entry:
  %v0 = getelementptr ptr, ptr %buffers, i64 0
  %v1 = load ptr, ptr %v0
  %v2 = getelementptr ptr, ptr %buffers, i64 1
  %v3 = load ptr, ptr %v2
  br label %loop4
loop4:
  %loop4.i = phi i64 [ %lo, %entry ], [ %loop4.i.next, %loop4.end ]
  %v5 = trunc i64 %loop4.i to i32
  %v6 = getelementptr float, ptr %v1, i32 %v5
  %v7 = mul nsw i32 %v5, 256
  br label %loop8
loop8:
  %loop8.i = phi i32 [ 0, %loop4 ], [ %loop8.i.next, %loop8.end ]
  %v9 = phi float [ 0x0000000000000000, %loop4 ], [ %v20, %loop8.end ]
  %v10 = mul nsw i32 %loop8.i, 16
  %v15 = add nsw i32 %v7, %v10
  %v16 = getelementptr float, ptr %v3, i32 %v15
  br label %loop11
loop11:
  %loop11.i = phi i32 [ 0, %loop8 ], [ %loop11.i.next, %loop11.end ]
  %v12 = phi float [ 0x0000000000000000, %loop8 ], [ %v19, %loop11.end ]
  %p17.walked = phi ptr [ %v16, %loop8 ], [ %p17.next, %loop11.end ]
  %p17 = call ptr @llvm.launder.invariant.group.p0(ptr %p17.walked)
  %v13 = add nsw i32 %v10, %loop11.i
  %v14 = add nsw i32 %v7, %v13
  %v18 = load float, ptr %p17, align 4
  %v19 = fadd contract float %v12, %v18
  br label %loop11.end
loop11.end:
  %p17.next = getelementptr float, ptr %p17, i64 1
  %loop11.i.next = add nuw nsw i32 %loop11.i, 1
  %loop11.more = icmp ult i32 %loop11.i.next, 16
  br i1 %loop11.more, label %loop11, label %loop11.exit
loop11.exit:
  %v20 = fadd contract float %v9, %v19
  br label %loop8.end
loop8.end:
  %loop8.i.next = add nuw nsw i32 %loop8.i, 1
  %loop8.more = icmp ult i32 %loop8.i.next, 16
  br i1 %loop8.more, label %loop8, label %loop8.exit
loop8.exit:
  store float %v20, ptr %v6, align 4
  br label %loop4.end
loop4.end:
  %loop4.i.next = add nuw nsw i64 %loop4.i, 1
  %loop4.more = icmp ult i64 %loop4.i.next, %hi
  br i1 %loop4.more, label %loop4, label %loop4.exit
loop4.exit:
  ret void
}
declare ptr @llvm.launder.invariant.group.p0(ptr)
