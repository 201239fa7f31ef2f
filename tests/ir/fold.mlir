// PASSES: fold
// CHECK: func.func @main(%[[X:.*]]: tensor<2x3xf32>)
// CHECK-NEXT: %[[N:.*]] = "cuvil.level1.neg"(%[[X]])
// CHECK-NEXT: func.return %[[N]]
func.func @main(%x : tensor<2x3xf32>) -> tensor<2x3xf32> {
  %one = "cuvil.level1.const"() <{splat = 1.0 : f64}> : () -> tensor<3xf32>
  %ones = "cuvil.level1.broadcast_to"(%one) <{shape = array<i64: 2, 3>}> : (tensor<3xf32>) -> tensor<2x3xf32>
  %a = "cuvil.level1.mul"(%x, %ones) <{acc = ""}> : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %b = "cuvil.level1.transpose"(%a) <{perm = array<i64: 1, 0>}> : (tensor<2x3xf32>) -> tensor<3x2xf32>
  %c = "cuvil.level1.transpose"(%b) <{perm = array<i64: 1, 0>}> : (tensor<3x2xf32>) -> tensor<2x3xf32>
  %d = "cuvil.level1.neg"(%c) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  func.return %d : tensor<2x3xf32>
}
