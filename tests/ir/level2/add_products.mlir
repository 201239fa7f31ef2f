// RUN: p 5,-128,1,1 _
// CONSTANT: d0 i64 2,3,2,-128,127,0,0,0,0,1,1,0,1,0,1,2,1,0,2,0,3,0,-1,0,4,0,1,0,0,0,0,1,-1,0,0,0
// Sums of products by constants, as additions: 3a - 5b is added to 100, and -2a to 0.
// CHECK: "cuvil.level2.add_products"(%{{.*}}, %{{.*}}, %{{.*}}) : (memref<6x6xi64>, memref<2xi8>, memref<2xi16>) -> ()
// CHECK: out: 755, -10 | 98, -2
"memref.global"() <{sym_name = "sums", type = memref<6x6xi64>, initial_value, sym_visibility = "public", constant}> {cuvil.handle = #cuvil.handle<"d0">, cuvil.dtype = #cuvil.dtype<"i64">} : () -> ()
func.func @p(%in : !cuvil.stream<i8, 2>, %out : !cuvil.stream<i16, 2>) attributes {cuvil.role = #cuvil.role<process>} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  %none = arith.constant 0 : i16
  %hundred = arith.constant 100 : i16
  %graph = memref.get_global @sums : memref<6x6xi64>
  %x = memref.alloca() {cuvil.word = #cuvil.word} : memref<2xi8>
  %y = memref.alloca() {cuvil.word = #cuvil.word} : memref<2xi16>
  scf.for %i = %zero to %two step %one {
    "cuvil.level2.stream_read"(%in, %x) : (!cuvil.stream<i8, 2>, memref<2xi8>) -> ()
    memref.store %hundred, %y[%zero] : memref<2xi16>
    memref.store %none, %y[%one] : memref<2xi16>
    "cuvil.level2.add_products"(%graph, %x, %y) : (memref<6x6xi64>, memref<2xi8>, memref<2xi16>) -> ()
    "cuvil.level2.stream_write"(%out, %y) : (!cuvil.stream<i16, 2>, memref<2xi16>) -> ()
  }
  func.return
}
func.func @top(%x : !cuvil.axis<16>, %y : !cuvil.axis<32>) attributes {cuvil.role = #cuvil.role<dataflow>} {
  %a = "cuvil.level2.stream"() <{depth = 2 : i32}> : () -> !cuvil.stream<i8, 2>
  %b = "cuvil.level2.stream"() <{depth = 2 : i32}> : () -> !cuvil.stream<i16, 2>
  "cuvil.level2.axis_read"(%x, %a) <{count = 4 : i32, dtype = #cuvil.dtype<"i8">}> : (!cuvil.axis<16>, !cuvil.stream<i8, 2>) -> ()
  func.call @p(%a, %b) : (!cuvil.stream<i8, 2>, !cuvil.stream<i16, 2>) -> ()
  "cuvil.level2.axis_write"(%b, %y) <{count = 4 : i32, dtype = #cuvil.dtype<"i16">}> : (!cuvil.stream<i16, 2>, !cuvil.axis<32>) -> ()
  func.return
}
