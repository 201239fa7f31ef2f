// PASSES: integerize
// Two bits: the table of sigmoid at -2, -1, 0, 1 in steps of 1/2.
// CHECK: %[[L:.*]] = "cuvil.level1.lut"(%{{.*}}) <{values = array<i64: 0, 1, 1, 1>, dtype = "i8"}>
// CHECK-NEXT: func.return %[[L]]
func.func @main(%x : tensor<5xi2>) -> tensor<5xi8> {
  %f = "cuvil.level1.dequantize"(%x) <{scale = array<f64: 1.0>, zero_point = array<i64: 0>, axis = 1 : i64}> : (tensor<5xi2>) -> tensor<5xf32>
  %s = "cuvil.level1.sigmoid"(%f) : (tensor<5xf32>) -> tensor<5xf32>
  %q = "cuvil.level1.quantize"(%s) <{scale = array<f64: 0.5>, zero_point = array<i64: 0>, dtype = "i8", axis = 1 : i64}> : (tensor<5xf32>) -> tensor<5xi8>
  func.return %q : tensor<5xi8>
}
