// PASSES: fuse
// CHECK: %[[C:.*]] = "cuvil.level1.const"()
// CHECK: %[[G:.*]] = "cuvil.level1.group"(%{{.*}}, %[[C]]) <{label = "linear_0"}> ({
// CHECK: "cuvil.level1.reshape"
// CHECK-NEXT: "cuvil.level1.linear"
// CHECK-NEXT: %[[R:.*]] = "cuvil.level1.relu"
// CHECK-NEXT: "cuvil.level1.yield"(%[[R]])
// CHECK: func.return %[[G]]
func.func @main(%x : tensor<1x2x2xf32>) -> tensor<1x3xf32> {
  %w = "cuvil.level1.const"() <{splat = 0.5 : f64}> : () -> tensor<3x4xf32>
  %f = "cuvil.level1.reshape"(%x) <{shape = array<i64: 1, 4>}> : (tensor<1x2x2xf32>) -> tensor<1x4xf32>
  %y = "cuvil.level1.linear"(%f, %w) <{x_zp = 0 : i64, w_zp = array<i64: 0>, acc = ""}> : (tensor<1x4xf32>, tensor<3x4xf32>) -> tensor<1x3xf32>
  %r = "cuvil.level1.relu"(%y) : (tensor<1x3xf32>) -> tensor<1x3xf32>
  func.return %r : tensor<1x3xf32>
}
