// RUN: sum 1,2,3,4,5,6 _
// Words of two lanes become words of their sum.
// CHECK: memref.alloca() {cuvil.word = #cuvil.word, cuvil.partition = #cuvil.partition<[0]>, cuvil.independent = #cuvil.independent} : memref<2xi8>
// CHECK: "cuvil.level2.stream_read"(%{{.*}}, %[[W:.*]]) : (!cuvil.stream<i8, 2>, memref<2xi8>) -> ()
// CHECK: "cuvil.level2.stream_write"(%{{.*}}, %{{.*}}) : (!cuvil.stream<i8, 1>, memref<1xi8>) -> ()
// CHECK: out: 3 | 7 | 11
func.func @sum(%in : !cuvil.stream<i8, 2>, %out : !cuvil.stream<i8, 1>) attributes {cuvil.role = #cuvil.role<process>} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %three = arith.constant 3 : index
  %one8 = arith.constant 1 : i8
  %w = memref.alloca() {cuvil.word = #cuvil.word, cuvil.partition = #cuvil.partition<[0]>, cuvil.independent = #cuvil.independent} : memref<2xi8>
  %y = memref.alloca() {cuvil.word = #cuvil.word, cuvil.distance = #cuvil.distance<4>} : memref<1xi8>
  scf.for %i = %zero to %three step %one {
    "cuvil.level2.stream_read"(%in, %w) : (!cuvil.stream<i8, 2>, memref<2xi8>) -> ()
    %a = memref.load %w[%zero] : memref<2xi8>
    %b = memref.load %w[%one] : memref<2xi8>
    %d = arith.addi %a, %b : i8
    %s = arith.muli %d, %one8 {cuvil.multiplier = #cuvil.multiplier<dsp>} : i8
    memref.store %s, %y[%zero] : memref<1xi8>
    "cuvil.level2.stream_write"(%out, %y) : (!cuvil.stream<i8, 1>, memref<1xi8>) -> ()
  }
  func.return
}
func.func @top(%x : !cuvil.axis<16>, %y : !cuvil.axis<16>) attributes {cuvil.role = #cuvil.role<dataflow>} {
  %a = "cuvil.level2.stream"() <{depth = 2 : i32}> {cuvil.fifo = #cuvil.fifo<srl>} : () -> !cuvil.stream<i8, 2>
  %b = "cuvil.level2.stream"() <{depth = 2 : i32}> : () -> !cuvil.stream<i8, 1>
  "cuvil.level2.axis_read"(%x, %a) <{count = 6 : i32, dtype = #cuvil.dtype<"i8">}> : (!cuvil.axis<16>, !cuvil.stream<i8, 2>) -> ()
  func.call @sum(%a, %b) : (!cuvil.stream<i8, 2>, !cuvil.stream<i8, 1>) -> ()
  "cuvil.level2.axis_write"(%b, %y) <{count = 3 : i32, dtype = #cuvil.dtype<"i8">}> : (!cuvil.stream<i8, 1>, !cuvil.axis<16>) -> ()
  func.return
}
