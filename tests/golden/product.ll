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
  %v7 = mul nsw i32 %loop6.i, 32
  %v8 = mul nsw i32 %loop6.i, 48
  %v17 = getelementptr float, ptr %v3, i32 %v8
  br label %loop9
loop9:
  %loop9.i = phi i32 [ 0, %loop6 ], [ %loop9.i.next, %loop9.end ]
  %v10 = mul nsw i32 %loop9.i, 4
  %v11 = add nsw i32 %v7, %v10
  %v12 = getelementptr float, ptr %v1, i32 %v11
  %v24 = getelementptr float, ptr %v5, i32 %v10
  br label %loop13
loop13:
  %loop13.i = phi i32 [ 0, %loop9 ], [ %loop13.i.next, %loop13.end ]
  %v14 = phi <4 x float> [ splat (float 0x0000000000000000), %loop9 ], [ %v33, %loop13.end ]
  %v15 = phi <4 x float> [ splat (float 0x0000000000000000), %loop9 ], [ %v34, %loop13.end ]
  %p18.walked = phi ptr [ %v17, %loop9 ], [ %p18.next, %loop13.end ]
  %p25.walked = phi ptr [ %v24, %loop9 ], [ %p25.next, %loop13.end ]
  %p18 = call ptr @llvm.launder.invariant.group.p0(ptr %p18.walked)
  %p25 = call ptr @llvm.launder.invariant.group.p0(ptr %p25.walked)
  %v16 = add nsw i32 %v8, %loop13.i
  %v19 = load float, ptr %p18, align 4
  %v20 = getelementptr float, ptr %p18, i64 24
  %v21 = load float, ptr %v20, align 4
  %v22 = mul nsw i32 %loop13.i, 16
  %v23 = add nsw i32 %v10, %v22
  %v26 = load <4 x float>, ptr %p25, align 4
  %v27 = insertelement <4 x float> poison, float %v19, i64 0
  %v28 = shufflevector <4 x float> %v27, <4 x float> poison, <4 x i32> zeroinitializer
  %v29 = fmul contract <4 x float> %v28, %v26
  %v30 = insertelement <4 x float> poison, float %v21, i64 0
  %v31 = shufflevector <4 x float> %v30, <4 x float> poison, <4 x i32> zeroinitializer
  %v32 = fmul contract <4 x float> %v31, %v26
  %v33 = fadd contract <4 x float> %v14, %v29
  %v34 = fadd contract <4 x float> %v15, %v32
  br label %loop13.end
loop13.end:
  %p18.next = getelementptr float, ptr %p18, i64 1
  %p25.next = getelementptr float, ptr %p25, i64 16
  %loop13.i.next = add nuw nsw i32 %loop13.i, 1
  %loop13.more = icmp ult i32 %loop13.i.next, 24
  br i1 %loop13.more, label %loop13, label %loop13.exit
loop13.exit:
  %v35 = call <4 x float> @llvm.maximum.v4f32(<4 x float> %v33, <4 x float> splat (float 0x0000000000000000))
  %v36 = call <4 x float> @llvm.maximum.v4f32(<4 x float> %v34, <4 x float> splat (float 0x0000000000000000))
  %v37 = getelementptr float, ptr %v12, i64 16
  store <4 x float> %v35, ptr %v12, align 4
  store <4 x float> %v36, ptr %v37, align 4
  br label %loop9.end
loop9.end:
  %loop9.i.next = add nuw nsw i32 %loop9.i, 1
  %loop9.more = icmp ult i32 %loop9.i.next, 4
  br i1 %loop9.more, label %loop9, label %loop9.exit
loop9.exit:
  br label %loop6.end
loop6.end:
  %loop6.i.next = add nuw nsw i32 %loop6.i, 1
  %loop6.more = icmp ult i32 %loop6.i.next, 16
  br i1 %loop6.more, label %loop6, label %loop6.exit
loop6.exit:
  ret void
}
declare ptr @llvm.launder.invariant.group.p0(ptr)
declare <4 x float> @llvm.maximum.v4f32(<4 x float>, <4 x float>)
