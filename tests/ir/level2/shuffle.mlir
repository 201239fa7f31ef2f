// RUN: f _
// Every thread adds the number of its partner, then writes for another one behind a barrier.
// CHECK: memref.alloca() {cuvil.space = #cuvil.space<shared>} : memref<32xi32>
// CHECK: "cuvil.level2.shuffle_xor"(%{{.*}}, %{{.*}}) : (i32, i32) -> i32
// CHECK: "gpu.barrier"
// CHECK: y: 61, 61, 57, 57, 53
func.func @f(%y : memref<32xi32>) attributes {cuvil.role = #cuvil.role<kernel>, cuvil.threads = #cuvil.threads<32>} {
  %one = arith.constant 1 : i32
  %last = arith.constant 31 : index
  %tile = memref.alloca() {cuvil.space = #cuvil.space<shared>} : memref<32xi32>
  %t = "gpu.thread_id"() <{dimension = #gpu<dim x>}> : () -> index
  %number = arith.index_cast %t : index to i32
  %other = "cuvil.level2.shuffle_xor"(%number, %one) : (i32, i32) -> i32
  %sum = arith.addi %number, %other : i32
  memref.store %sum, %tile[%t] : memref<32xi32>
  "gpu.barrier"() : () -> ()
  %mirrored = arith.subi %last, %t : index
  %v = memref.load %tile[%mirrored] : memref<32xi32>
  memref.store %v, %y[%t] : memref<32xi32>
  func.return
}
