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
  %v5 = mul nsw i32 %loop4.i, 12
  %v9 = getelementptr float, ptr %v3, i32 %v5
  br label %loop6
loop6:
  %loop6.i = phi i32 [ 0, %loop4 ], [ %loop6.i.next, %loop6.end ]
  %v7 = phi float [ 0xFFF0000000000000, %loop4 ], [ %v12, %loop6.end ]
  %p10.walked = phi ptr [ %v9, %loop4 ], [ %p10.next, %loop6.end ]
  %p10 = call ptr @llvm.launder.invariant.group.p0(ptr %p10.walked)
  %v8 = add nsw i32 %v5, %loop6.i
  %v11 = load float, ptr %p10, align 4
  %v12 = call float @llvm.maximum.f32(float %v7, float %v11)
  br label %loop6.end
loop6.end:
  %p10.next = getelementptr float, ptr %p10, i64 1
  %loop6.i.next = add nuw nsw i32 %loop6.i, 1
  %loop6.more = icmp ult i32 %loop6.i.next, 12
  br i1 %loop6.more, label %loop6, label %loop6.exit
loop6.exit:
  %v17 = getelementptr float, ptr %v3, i32 %v5
  br label %loop13
loop13:
  %loop13.i = phi i32 [ 0, %loop6.exit ], [ %loop13.i.next, %loop13.end ]
  %v14 = phi float [ 0x0000000000000000, %loop6.exit ], [ %v21, %loop13.end ]
  %p15.walked = phi ptr [ %local0, %loop6.exit ], [ %p15.next, %loop13.end ]
  %p18.walked = phi ptr [ %v17, %loop6.exit ], [ %p18.next, %loop13.end ]
  %p15 = call ptr @llvm.launder.invariant.group.p0(ptr %p15.walked)
  %p18 = call ptr @llvm.launder.invariant.group.p0(ptr %p18.walked)
  %v16 = add nsw i32 %v5, %loop13.i
  %v19 = load float, ptr %p18, align 4
  %v20 = fsub contract float %v19, %v12
  store float %v20, ptr %p15, align 4
  %v21 = fadd contract float %v14, %v20
  br label %loop13.end
loop13.end:
  %p15.next = getelementptr float, ptr %p15, i64 1
  %p18.next = getelementptr float, ptr %p18, i64 1
  %loop13.i.next = add nuw nsw i32 %loop13.i, 1
  %loop13.more = icmp ult i32 %loop13.i.next, 12
  br i1 %loop13.more, label %loop13, label %loop13.exit
loop13.exit:
  %v27 = getelementptr float, ptr %v1, i32 %v5
  br label %loop22
loop22:
  %loop22.i = phi i32 [ 0, %loop13.exit ], [ %loop22.i.next, %loop22.end ]
  %p23.walked = phi ptr [ %local0, %loop13.exit ], [ %p23.next, %loop22.end ]
  %p28.walked = phi ptr [ %v27, %loop13.exit ], [ %p28.next, %loop22.end ]
  %p23 = call ptr @llvm.launder.invariant.group.p0(ptr %p23.walked)
  %p28 = call ptr @llvm.launder.invariant.group.p0(ptr %p28.walked)
  %v24 = load float, ptr %p23, align 4
  %v25 = fsub contract float %v24, %v21
  %v26 = add nsw i32 %v5, %loop22.i
  store float %v25, ptr %p28, align 4
  br label %loop22.end
loop22.end:
  %p23.next = getelementptr float, ptr %p23, i64 1
  %p28.next = getelementptr float, ptr %p28, i64 1
  %loop22.i.next = add nuw nsw i32 %loop22.i, 1
  %loop22.more = icmp ult i32 %loop22.i.next, 12
  br i1 %loop22.more, label %loop22, label %loop22.exit
loop22.exit:
  br label %loop4.end
loop4.end:
  %loop4.i.next = add nuw nsw i32 %loop4.i, 1
  %loop4.more = icmp ult i32 %loop4.i.next, 8
  br i1 %loop4.more, label %loop4, label %loop4.exit
loop4.exit:
  ret void
}
declare ptr @llvm.launder.invariant.group.p0(ptr)
declare float @llvm.maximum.f32(float, float)
