// RUN: f 0,1,2,3,4,5,6,7,8,9,10,11 _ blocks=2
// Each of two tasks copies two runs of two elements, four apart, to its own part of the result.
// CHECK: memref.alloca() {cuvil.space = #cuvil.space<nram>} : memref<4xi8>
// CHECK: "cuvil.level2.copy"({{.*}}) <{segments = 2 : i32, source_stride = 4 : i32, target_stride = 2 : i32}>
// CHECK: y: 1, 2, 5, 6, 3, 4, 7, 8
func.func @f(%x : memref<12xi8>, %y : memref<8xi8>) attributes {cuvil.role = #cuvil.role<kernel>} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  %four = arith.constant 4 : index
  %near = memref.alloca() {cuvil.space = #cuvil.space<nram>} : memref<4xi8>
  %task = "gpu.block_id"() <{dimension = #gpu<dim x>}> : () -> index
  %by = arith.muli %task, %two : index
  %from = arith.addi %by, %one : index
  %to = arith.muli %task, %four : index
  "cuvil.level2.copy"(%x, %from, %near, %zero, %two) <{segments = 2 : i32, source_stride = 4 : i32, target_stride = 2 : i32}> : (memref<12xi8>, index, memref<4xi8>, index, index) -> ()
  "cuvil.level2.copy"(%near, %zero, %y, %to, %four) <{segments = 1 : i32, source_stride = 0 : i32, target_stride = 0 : i32}> : (memref<4xi8>, index, memref<8xi8>, index, index) -> ()
  func.return
}
