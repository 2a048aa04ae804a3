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
  br label %loop9
loop9:
  %loop9.i = phi i32 [ 0, %loop6 ], [ %loop9.i.next, %loop9.end ]
  %v10 = mul nsw i32 %loop9.i, 4
  %v11 = add nsw i32 %v7, %v10
  %v12 = getelementptr float, ptr %v1, i32 %v11
  br label %loop13
loop13:
  %loop13.i = phi i32 [ 0, %loop9 ], [ %loop13.i.next, %loop13.end ]
  %v14 = phi <4 x float> [ splat (float 0x0000000000000000), %loop9 ], [ %v31, %loop13.end ]
  %v15 = phi <4 x float> [ splat (float 0x0000000000000000), %loop9 ], [ %v32, %loop13.end ]
  %v16 = add nsw i32 %v8, %loop13.i
  %v17 = getelementptr float, ptr %v3, i32 %v16
  %v18 = load float, ptr %v17, align 4
  %v19 = getelementptr float, ptr %v17, i64 24
  %v20 = load float, ptr %v19, align 4
  %v21 = mul nsw i32 %loop13.i, 16
  %v22 = add nsw i32 %v10, %v21
  %v23 = getelementptr float, ptr %v5, i32 %v22
  %v24 = load <4 x float>, ptr %v23, align 4
  %v25 = insertelement <4 x float> poison, float %v18, i64 0
  %v26 = shufflevector <4 x float> %v25, <4 x float> poison, <4 x i32> zeroinitializer
  %v27 = fmul contract <4 x float> %v26, %v24
  %v28 = insertelement <4 x float> poison, float %v20, i64 0
  %v29 = shufflevector <4 x float> %v28, <4 x float> poison, <4 x i32> zeroinitializer
  %v30 = fmul contract <4 x float> %v29, %v24
  %v31 = fadd contract <4 x float> %v14, %v27
  %v32 = fadd contract <4 x float> %v15, %v30
  br label %loop13.end
loop13.end:
  %loop13.i.next = add nuw nsw i32 %loop13.i, 1
  %loop13.more = icmp ult i32 %loop13.i.next, 24
  br i1 %loop13.more, label %loop13, label %loop13.exit
loop13.exit:
  %v33 = call <4 x float> @llvm.maximum.v4f32(<4 x float> %v31, <4 x float> splat (float 0x0000000000000000))
  %v34 = call <4 x float> @llvm.maximum.v4f32(<4 x float> %v32, <4 x float> splat (float 0x0000000000000000))
  %v35 = getelementptr float, ptr %v12, i64 16
  store <4 x float> %v33, ptr %v12, align 4
  store <4 x float> %v34, ptr %v35, align 4
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
declare <4 x float> @llvm.maximum.v4f32(<4 x float>, <4 x float>)
