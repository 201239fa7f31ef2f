// PASSES: narrow-floats{to="bf16"}
// CHECK: func.func @main(%[[X:.*]]: tensor<2xf32>)
// CHECK-NEXT: %[[N:.*]] = "cuvil.level1.cast"(%[[X]]) <{dtype = "bf16"}>
// CHECK-NEXT: %[[W:.*]] = "cuvil.level1.const"() <{splat = 2.0{{.*}} : () -> tensor<2xbf16>
// CHECK-NEXT: %[[M:.*]] = "cuvil.level1.mul"(%[[N]], %[[W]])
// CHECK-NEXT: %[[Y:.*]] = "cuvil.level1.cast"(%[[M]]) <{dtype = "f32"}>
// CHECK-NEXT: func.return %[[Y]]
func.func @main(%x : tensor<2xf32>) -> tensor<2xf32> {
  %w = "cuvil.level1.const"() <{splat = 2.0 : f64}> : () -> tensor<2xf32>
  %y = "cuvil.level1.mul"(%x, %w) <{acc = ""}> : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
  func.return %y : tensor<2xf32>
}
