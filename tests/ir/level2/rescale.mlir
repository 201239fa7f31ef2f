// RUN: f -3,5,100,-100 _
// Products and the offset in 64 bits, then a shift, a zero point and limits; `even` adds the bit that a tie is rounded by.
// CHECK: "cuvil.level2.rescale"(%{{.*}}, %{{.*}}) <{
// CHECK: y: -1, 3, 51, -49
func.func @f(%a : memref<4xi32>, %y : memref<4xi32>) attributes {cuvil.role = #cuvil.role<kernel>} {
  %zero = arith.constant 0 : index
  %two = arith.constant 2 : i32
  %x = vector.load %a[%zero] : memref<4xi32>, vector<4xi32>
  %m = vector.broadcast %two : i32 to vector<4xi32>
  %r = "cuvil.level2.rescale"(%x, %m) <{offset = 1 : i64, shift = 2 : i32, zero = 1 : i32, low = -128 : i32, high = 127 : i32, even = 1 : i32}> : (vector<4xi32>, vector<4xi32>) -> vector<4xi32>
  vector.store %r, %y[%zero] : memref<4xi32>, vector<4xi32>
  func.return
}
