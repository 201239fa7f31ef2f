// RUN: f 1,-2,3,4 10,100,1000,-1,7,7,7,7 _
// Two neighbours fill a vector; products of pairs are added to 32 bits. A product and a sum of floats are rounded once.
// CHECK: "cuvil.level2.splat_pair"(%a, %{{.*}}) : (memref<4xi16>, index) -> vector<4xi16>
// CHECK: "cuvil.level2.add_pairs"(%{{.*}}, %{{.*}}, %{{.*}}) : (vector<4xi16>, vector<4xi16>, vector<2xi32>) -> vector<2xi32>
// CHECK: y: -185, 1007
func.func @f(%a : memref<4xi16>, %b : memref<8xi16>, %y : memref<2xi32>) attributes {cuvil.role = #cuvil.role<kernel>} {
  %zero = arith.constant 0 : index
  %five = arith.constant 5 : i32
  %pair = "cuvil.level2.splat_pair"(%a, %zero) : (memref<4xi16>, index) -> vector<4xi16>
  %w = vector.load %b[%zero] : memref<8xi16>, vector<4xi16>
  %start = vector.broadcast %five : i32 to vector<2xi32>
  %sums = "cuvil.level2.add_pairs"(%pair, %w, %start) : (vector<4xi16>, vector<4xi16>, vector<2xi32>) -> vector<2xi32>
  vector.store %sums, %y[%zero] : memref<2xi32>, vector<2xi32>
  func.return
}
