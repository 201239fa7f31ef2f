// RUN: f 1,2,3,4,-1,-2,-3,-4 2,2,2,2,127,1,1,-128 _
// The first of four bytes is the lowest; the sum of products goes on from an accumulator.
// CHECK: %[[A:.*]] = "cuvil.level2.load_word"(%a, %four) : (memref<8xi8>, index) -> i32
// CHECK: %[[B:.*]] = "cuvil.level2.load_word"(%{{.*}}, %{{.*}}) : (memref<8xi8>, index) -> i32
// CHECK: "cuvil.level2.dot4"(%[[A]], %[[B]], %{{.*}}) : (i32, i32, i32) -> i32
// CHECK: y: 67305985, 380, 400
func.func @f(%a : memref<8xi8>, %b : memref<8xi8>, %y : memref<3xi32>) attributes {cuvil.role = #cuvil.role<kernel>} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  %four = arith.constant 4 : index
  %seven = arith.constant 0 : i32
  %low = "cuvil.level2.load_word"(%a, %zero) : (memref<8xi8>, index) -> i32
  memref.store %low, %y[%zero] : memref<3xi32>
  %p = "cuvil.level2.load_word"(%a, %four) : (memref<8xi8>, index) -> i32
  %q = "cuvil.level2.load_word"(%b, %four) : (memref<8xi8>, index) -> i32
  %d = "cuvil.level2.dot4"(%p, %q, %seven) : (i32, i32, i32) -> i32
  memref.store %d, %y[%one] : memref<3xi32>
  %r = "cuvil.level2.load_word"(%b, %zero) : (memref<8xi8>, index) -> i32
  %e = "cuvil.level2.dot4"(%low, %r, %d) : (i32, i32, i32) -> i32
  memref.store %e, %y[%two] : memref<3xi32>
  func.return
}
