// RUN: f 1,-1,3,-4,5,6 _
// Lanes are neighbours of the innermost dimension; `widen` reads them by their own sign, or as numbers ≥ 0.
// CHECK: vector.load %a[%{{.*}}] : memref<6xi8>, vector<2xi8>
// CHECK: "cuvil.level2.widen"(%{{.*}}) <{dtype = #cuvil.dtype<"u8">}> : (vector<2xi8>) -> vector<2xi32>
// CHECK: y: -2, 6, 1, 258
func.func @f(%a : memref<6xi8>, %y : memref<4xi32>) attributes {cuvil.role = #cuvil.role<kernel>} {
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  %zero = arith.constant 0 : index
  %k = arith.constant 2 : i32
  %narrow = vector.load %a[%one] : memref<6xi8>, vector<2xi8>
  %wide = "cuvil.level2.widen"(%narrow) <{dtype = #cuvil.dtype<"i8">}> : (vector<2xi8>) -> vector<2xi32>
  %twice = vector.broadcast %k : i32 to vector<2xi32>
  %p = arith.muli %wide, %twice : vector<2xi32>
  %acc = memref.alloca() : memref<1xvector<2xi32>>
  memref.store %p, %acc[%zero] : memref<1xvector<2xi32>>
  %later = vector.load %a[%two] : memref<6xi8>, vector<2xi8>
  %q = memref.load %acc[%zero] : memref<1xvector<2xi32>>
  %natural = "cuvil.level2.widen"(%later) <{dtype = #cuvil.dtype<"u8">}> : (vector<2xi8>) -> vector<2xi32>
  %zeros = arith.subi %q, %q : vector<2xi32>
  %sum = arith.addi %natural, %zeros : vector<2xi32>
  vector.store %q, %y[%zero] : memref<4xi32>, vector<2xi32>
  %less = arith.addi %q, %sum : vector<2xi32>
  vector.store %less, %y[%two] : memref<4xi32>, vector<2xi32>
  func.return
}
