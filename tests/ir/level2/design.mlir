// RUN: top 1,2,3,4,5,6,7,8 _ samples=2
// CHECK: "cuvil.level2.stream"() <{depth = 2 : i32, words = 2 : i32}> {cuvil.name = #cuvil.name<"a">} : () -> !cuvil.stream<i8, 2>
// CHECK: "cuvil.level2.axis_read"(%x, %{{.*}}) <{{{.*}}count = 4 : i32, dtype = #cuvil.dtype<"i8">{{.*}}}>
// CHECK: "cuvil.level2.axis_write"(%{{.*}}, %y) <{{{.*}}count = 4 : i32, dtype = #cuvil.dtype<"i8">{{.*}}}>
// CHECK: y: 2, 4, 6, 8 | 10, 12, 14, 16
func.func @double(%in : !cuvil.stream<i8, 2>, %out : !cuvil.stream<i8, 2>) attributes {cuvil.role = #cuvil.role<process>} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  %w = memref.alloca() {cuvil.word = #cuvil.word} : memref<2xi8>
  scf.for %i = %zero to %two step %one {
    "cuvil.level2.stream_read"(%in, %w) : (!cuvil.stream<i8, 2>, memref<2xi8>) -> ()
    scf.for %l = %zero to %two step %one {
      %v = memref.load %w[%l] : memref<2xi8>
      %d = arith.addi %v, %v : i8
      memref.store %d, %w[%l] : memref<2xi8>
    } {cuvil.unroll = #cuvil.unroll}
    "cuvil.level2.stream_write"(%out, %w) : (!cuvil.stream<i8, 2>, memref<2xi8>) -> ()
  } {cuvil.pipeline = #cuvil.pipeline<1>}
  func.return
}
func.func @top(%x : !cuvil.axis<32>, %y : !cuvil.axis<32>) attributes {cuvil.role = #cuvil.role<dataflow>} {
  %a = "cuvil.level2.stream"() <{depth = 2 : i32, words = 2 : i32}> {cuvil.name = #cuvil.name<"a">} : () -> !cuvil.stream<i8, 2>
  %b = "cuvil.level2.stream"() <{depth = 2 : i32, words = 2 : i32}> {cuvil.name = #cuvil.name<"b">} : () -> !cuvil.stream<i8, 2>
  "cuvil.level2.axis_read"(%x, %a) <{count = 4 : i32, dtype = #cuvil.dtype<"i8">}> : (!cuvil.axis<32>, !cuvil.stream<i8, 2>) -> ()
  func.call @double(%a, %b) : (!cuvil.stream<i8, 2>, !cuvil.stream<i8, 2>) -> ()
  "cuvil.level2.axis_write"(%b, %y) <{count = 4 : i32, dtype = #cuvil.dtype<"i8">}> : (!cuvil.stream<i8, 2>, !cuvil.axis<32>) -> ()
  func.return
}
