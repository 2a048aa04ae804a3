define void @kernel(ptr %buffers, i64 %lo, i64 %hi) nounwind "prefer-vector-width"="512" "min-legal-vector-width"="512" {
entry:
  %zeros = alloca [4 x i8], align 64
  store [4 x i8] zeroinitializer, ptr %zeros, align 64
  %trash = alloca [4 x i8], align 64
  %v0 = getelementptr ptr, ptr %buffers, i64 0
  %v1 = load ptr, ptr %v0
  %v2 = getelementptr ptr, ptr %buffers, i64 1
  %v3 = load ptr, ptr %v2
  %v4 = getelementptr ptr, ptr %buffers, i64 2
  %v5 = load ptr, ptr %v4
  br label %loop6
loop6:
  %loop6.i = phi i32 [ 0, %entry ], [ %loop6.i.next, %loop6.end ]
  %v7 = mul nsw i32 %loop6.i, 20
  %v8 = mul nsw i32 %loop6.i, 5
  %v9 = mul nsw i32 %loop6.i, -5
  br label %loop10
loop10:
  %loop10.i = phi i32 [ 0, %loop6 ], [ %loop10.i.next, %loop10.end ]
  %v11 = add nsw i32 %v7, %loop10.i
  br label %loop12
loop12:
  %loop12.i = phi i32 [ 0, %loop10 ], [ %loop12.i.next, %loop12.end ]
  %v13 = mul nsw i32 %loop12.i, 4
  %v14 = add nsw i32 %v11, %v13
  %v15 = add nsw i32 %v8, %loop12.i
  %v16 = icmp slt i32 %v15, 9
  %v17 = getelementptr float, ptr %v1, i32 %v14
  %v18 = select i1 %v16, ptr %v17, ptr %trash
  store float 0x0000000000000000, ptr %v18, align 4
  br label %loop12.end
loop12.end:
  %loop12.i.next = add nuw nsw i32 %loop12.i, 1
  %loop12.more = icmp ult i32 %loop12.i.next, 5
  br i1 %loop12.more, label %loop12, label %loop12.exit
loop12.exit:
  br label %loop19
loop19:
  %loop19.i = phi i32 [ 0, %loop12.exit ], [ %loop19.i.next, %loop19.end ]
  %v20 = getelementptr i32, ptr %v3, i32 %loop19.i
  %v21 = load i32, ptr %v20, align 4
  %v22 = call i32 @llvm.smax.i32(i32 %v21, i32 0)
  %v23 = add nsw i32 %v9, %v22
  %v24 = call i32 @llvm.smax.i32(i32 %v23, i32 0)
  %v25 = call i32 @llvm.smin.i32(i32 %v24, i32 4)
  %v26 = mul nsw i32 %v25, 4
  %v27 = add nsw i32 %v11, %v26
  %v28 = add nsw i32 %v8, %v25
  %v29 = icmp eq i32 %v28, %v21
  %v30 = icmp slt i32 %v21, 9
  %v31 = and i1 %v29, %v30
  %v32 = getelementptr float, ptr %v1, i32 %v27
  %v33 = select i1 %v31, ptr %v32, ptr %zeros
  %v34 = load float, ptr %v33, align 4
  %v35 = mul nsw i32 %loop19.i, 4
  %v36 = add nsw i32 %loop10.i, %v35
  %v37 = getelementptr float, ptr %v5, i32 %v36
  %v38 = load float, ptr %v37, align 4
  %v39 = fadd contract float %v34, %v38
  br i1 %v31, label %put40.inside, label %put40.done, !prof !2
put40.inside:
  store float %v39, ptr %v32, align 4
  br label %put40.done
put40.done:
  br label %loop19.end
loop19.end:
  %loop19.i.next = add nuw nsw i32 %loop19.i, 1
  %loop19.more = icmp ult i32 %loop19.i.next, 12
  br i1 %loop19.more, label %loop19, label %loop19.exit
loop19.exit:
  br label %loop10.end
loop10.end:
  %loop10.i.next = add nuw nsw i32 %loop10.i, 1
  %loop10.more = icmp ult i32 %loop10.i.next, 4
  br i1 %loop10.more, label %loop10, label %loop10.exit
loop10.exit:
  br label %loop6.end
loop6.end:
  %loop6.i.next = add nuw nsw i32 %loop6.i, 1
  %loop6.more = icmp ult i32 %loop6.i.next, 2
  br i1 %loop6.more, label %loop6, label %loop6.exit
loop6.exit:
  ret void
}
declare i32 @llvm.smax.i32(i32, i32)
declare i32 @llvm.smin.i32(i32, i32)
!2 = !{!"branch_weights", i32 1048575, i32 1}
