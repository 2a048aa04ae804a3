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
  %v5 = getelementptr float, ptr %local0, i32 %loop4.i
  store float 0x0000000000000000, ptr %v5, align 4
  br label %loop4.end
loop4.end:
  %loop4.i.next = add nuw nsw i32 %loop4.i, 1
  %loop4.more = icmp ult i32 %loop4.i.next, 12
  br i1 %loop4.more, label %loop4, label %loop4.exit
loop4.exit:
  br label %loop6
loop6:
  %loop6.i = phi i32 [ 0, %loop4.exit ], [ %loop6.i.next, %loop6.end ]
  %v7 = mul nsw i32 %loop6.i, 12
  br label %loop8
loop8:
  %loop8.i = phi i32 [ 0, %loop6 ], [ %loop8.i.next, %loop8.end ]
  %v9 = getelementptr float, ptr %local0, i32 %loop8.i
  %v10 = load float, ptr %v9, align 4
  %v11 = add nsw i32 %v7, %loop8.i
  %v12 = getelementptr float, ptr %v3, i32 %v11
  %v13 = load float, ptr %v12, align 4
  %v14 = fadd contract float %v10, %v13
  store float %v14, ptr %v9, align 4
  br label %loop8.end
loop8.end:
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
  br label %loop15
loop15:
  %loop15.i = phi i32 [ 0, %loop6.exit ], [ %loop15.i.next, %loop15.end ]
  %v16 = getelementptr float, ptr %v1, i32 %loop15.i
  %v17 = getelementptr float, ptr %local0, i32 %loop15.i
  %v18 = load float, ptr %v17, align 4
  store float %v18, ptr %v16, align 4
  br label %loop15.end
loop15.end:
  %loop15.i.next = add nuw nsw i32 %loop15.i, 1
  %loop15.more = icmp ult i32 %loop15.i.next, 12
  br i1 %loop15.more, label %loop15, label %loop15.exit
loop15.exit:
  ret void
}
