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
  br label %loop6
loop6:
  %loop6.i = phi i32 [ 0, %loop4 ], [ %loop6.i.next, %loop6.end ]
  %v7 = phi float [ 0xFFF0000000000000, %loop4 ], [ %v11, %loop6.end ]
  %v8 = add nsw i32 %v5, %loop6.i
  %v9 = getelementptr float, ptr %v3, i32 %v8
  %v10 = load float, ptr %v9, align 4
  %v11 = call float @llvm.maximum.f32(float %v7, float %v10)
  br label %loop6.end
loop6.end:
  %loop6.i.next = add nuw nsw i32 %loop6.i, 1
  %loop6.more = icmp ult i32 %loop6.i.next, 12
  br i1 %loop6.more, label %loop6, label %loop6.exit
loop6.exit:
  br label %loop12
loop12:
  %loop12.i = phi i32 [ 0, %loop6.exit ], [ %loop12.i.next, %loop12.end ]
  %v13 = phi float [ 0x0000000000000000, %loop6.exit ], [ %v19, %loop12.end ]
  %v14 = getelementptr float, ptr %local0, i32 %loop12.i
  %v15 = add nsw i32 %v5, %loop12.i
  %v16 = getelementptr float, ptr %v3, i32 %v15
  %v17 = load float, ptr %v16, align 4
  %v18 = fsub contract float %v17, %v11
  store float %v18, ptr %v14, align 4
  %v19 = fadd contract float %v13, %v18
  br label %loop12.end
loop12.end:
  %loop12.i.next = add nuw nsw i32 %loop12.i, 1
  %loop12.more = icmp ult i32 %loop12.i.next, 12
  br i1 %loop12.more, label %loop12, label %loop12.exit
loop12.exit:
  br label %loop20
loop20:
  %loop20.i = phi i32 [ 0, %loop12.exit ], [ %loop20.i.next, %loop20.end ]
  %v21 = getelementptr float, ptr %local0, i32 %loop20.i
  %v22 = load float, ptr %v21, align 4
  %v23 = fsub contract float %v22, %v19
  %v24 = add nsw i32 %v5, %loop20.i
  %v25 = getelementptr float, ptr %v1, i32 %v24
  store float %v23, ptr %v25, align 4
  br label %loop20.end
loop20.end:
  %loop20.i.next = add nuw nsw i32 %loop20.i, 1
  %loop20.more = icmp ult i32 %loop20.i.next, 12
  br i1 %loop20.more, label %loop20, label %loop20.exit
loop20.exit:
  br label %loop4.end
loop4.end:
  %loop4.i.next = add nuw nsw i32 %loop4.i, 1
  %loop4.more = icmp ult i32 %loop4.i.next, 8
  br i1 %loop4.more, label %loop4, label %loop4.exit
loop4.exit:
  ret void
}
declare float @llvm.maximum.f32(float, float)
