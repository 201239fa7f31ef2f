// PASSES: integerize,accumulators
// The relu costs nothing (the output type ends at zero), the scale ratio 2^-3 is a shift, 4 · 128 · 3 needs 12 bits.
// CHECK: %[[W:.*]] = "cuvil.level1.const"() <{splat = 3 : i64}> : () -> tensor<2x4xi8>
// CHECK-NEXT: %[[Y:.*]] = "cuvil.level1.linear"(%{{.*}}, %[[W]]) <{x_zp = 0 : i64, w_zp = array<i64: 0>, acc = "i12"}> {loc = "fc"}
// CHECK-NEXT: %[[R:.*]] = "cuvil.level1.rescale"(%[[Y]]) <{multiplier = array<i64: 1>, shift = array<i64: 3>, dtype = "i8"
// CHECK-SAME: output_zp = -128
// CHECK-NOT: relu
// CHECK: func.return %[[R]]
func.func @main(%x : tensor<1x4xi8>) -> tensor<1x2xi8> {
  %w = "cuvil.level1.const"() <{splat = 3 : i64}> : () -> tensor<2x4xi8>
  %wf = "cuvil.level1.dequantize"(%w) <{scale = array<f64: 0.125>, zero_point = array<i64: 0>, axis = 0 : i64}> : (tensor<2x4xi8>) -> tensor<2x4xf32>
  %xf = "cuvil.level1.dequantize"(%x) <{scale = array<f64: 0.5>, zero_point = array<i64: 0>, axis = 1 : i64}> : (tensor<1x4xi8>) -> tensor<1x4xf32>
  %y = "cuvil.level1.linear"(%xf, %wf) <{x_zp = 0 : i64, w_zp = array<i64: 0>, acc = ""}> {loc = "fc"} : (tensor<1x4xf32>, tensor<2x4xf32>) -> tensor<1x2xf32>
  %r = "cuvil.level1.relu"(%y) : (tensor<1x2xf32>) -> tensor<1x2xf32>
  %q = "cuvil.level1.quantize"(%r) <{scale = array<f64: 0.5>, zero_point = array<i64: -128>, dtype = "i8", axis = 1 : i64}> : (tensor<1x2xf32>) -> tensor<1x2xi8>
  func.return %q : tensor<1x2xi8>
}
