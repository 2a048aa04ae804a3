define void @kernel(ptr %buffers, i64 %lo, i64 %hi) nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" {
entry:
  %local0 = alloca [12 x float], align 64
  %v0 = getelementptr ptr, ptr %buffers, i64 0
  %v1 = load ptr, ptr %v0
  %v2 = getelementptr ptr, ptr %buffers, i64 1
  %v3 = load ptr, ptr %v2
  br label %loop4
loop4:
  %loop4.i = phi i32 [ 0, %entry ], [ %loop4.i.next, %loop4.end ]
  %p5.walked = phi ptr [ %local0, %entry ], [ %p5.next, %loop4.end ]
  %p5 = call ptr @llvm.launder.invariant.group.p0(ptr %p5.walked)
  store float 0x0000000000000000, ptr %p5, align 4
  br label %loop4.end
loop4.end:
  %p5.next = getelementptr float, ptr %p5, i64 1
  %loop4.i.next = add nuw nsw i32 %loop4.i, 1
  %loop4.more = icmp ult i32 %loop4.i.next, 12
  br i1 %loop4.more, label %loop4, label %loop4.exit
loop4.exit:
  br label %loop6
loop6:
  %loop6.i = phi i32 [ 0, %loop4.exit ], [ %loop6.i.next, %loop6.end ]
  %v7 = mul nsw i32 %loop6.i, 12
  %v12 = getelementptr float, ptr %v3, i32 %v7
  br label %loop8
loop8:
  %loop8.i = phi i32 [ 0, %loop6 ], [ %loop8.i.next, %loop8.end ]
  %p9.walked = phi ptr [ %local0, %loop6 ], [ %p9.next, %loop8.end ]
  %p13.walked = phi ptr [ %v12, %loop6 ], [ %p13.next, %loop8.end ]
  %p9 = call ptr @llvm.launder.invariant.group.p0(ptr %p9.walked)
  %p13 = call ptr @llvm.launder.invariant.group.p0(ptr %p13.walked)
  %v10 = load float, ptr %p9, align 4
  %v11 = add nsw i32 %v7, %loop8.i
  %v14 = load float, ptr %p13, align 4
  %v15 = fadd contract float %v10, %v14
  store float %v15, ptr %p9, align 4
  br label %loop8.end
loop8.end:
  %p9.next = getelementptr float, ptr %p9, i64 1
  %p13.next = getelementptr float, ptr %p13, i64 1
  %loop8.i.next = add nuw nsw i32 %loop8.i, 1
  %loop8.more = icmp ult i32 %loop8.i.next, 12
  br i1 %loop8.more, label %loop8, label %loop8.exit
loop8.exit:
  br label %loop6.end
loop6.end:
  %loop6.i.next = add nuw nsw i32 %loop6.i, 1
  %loop6.more = icmp ult i32 %loop6.i.next, 24
  br i1 %loop6.more, label %loop6, label %loop6.exit
loop6.exit:
  br label %loop16
loop16:
  %loop16.i = phi i32 [ 0, %loop6.exit ], [ %loop16.i.next, %loop16.end ]
  %p17.walked = phi ptr [ %v1, %loop6.exit ], [ %p17.next, %loop16.end ]
  %p18.walked = phi ptr [ %local0, %loop6.exit ], [ %p18.next, %loop16.end ]
  %p17 = call ptr @llvm.launder.invariant.group.p0(ptr %p17.walked)
  %p18 = call ptr @llvm.launder.invariant.group.p0(ptr %p18.walked)
  %v19 = load float, ptr %p18, align 4
  store float %v19, ptr %p17, align 4
  br label %loop16.end
loop16.end:
  %p17.next = getelementptr float, ptr %p17, i64 1
  %p18.next = getelementptr float, ptr %p18, i64 1
  %loop16.i.next = add nuw nsw i32 %loop16.i, 1
  %loop16.more = icmp ult i32 %loop16.i.next, 12
  br i1 %loop16.more, label %loop16, label %loop16.exit
loop16.exit:
  ret void
}
declare ptr @llvm.launder.invariant.group.p0(ptr)
