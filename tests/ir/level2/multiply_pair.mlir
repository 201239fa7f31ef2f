// RUN: p 5,-128 _
// Two products with one factor in common, of 8 by 8 bits.
// CHECK: "cuvil.level2.multiply_pair"(%{{.*}}, %{{.*}}, %{{.*}}) <{shared_bits = 8 : i32, other_bits = 8 : i32, apart = 16 : i32}> : (i16, i16, i16) -> (i16, i16)
// CHECK: out: -640, -35 | 16384, 896
func.func @p(%in : !cuvil.stream<i8, 1>, %out : !cuvil.stream<i16, 2>) attributes {cuvil.role = #cuvil.role<process>} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  %a = arith.constant -128 : i16
  %b = arith.constant -7 : i16
  %x = memref.alloca() {cuvil.word = #cuvil.word} : memref<1xi8>
  %y = memref.alloca() {cuvil.word = #cuvil.word} : memref<2xi16>
  scf.for %i = %zero to %two step %one {
    "cuvil.level2.stream_read"(%in, %x) : (!cuvil.stream<i8, 1>, memref<1xi8>) -> ()
    %v = memref.load %x[%zero] : memref<1xi8>
    %w = arith.extsi %v : i8 to i16
    %l, %h = "cuvil.level2.multiply_pair"(%w, %a, %b) <{shared_bits = 8 : i32, other_bits = 8 : i32, apart = 16 : i32}> : (i16, i16, i16) -> (i16, i16)
    memref.store %l, %y[%zero] : memref<2xi16>
    memref.store %h, %y[%one] : memref<2xi16>
    "cuvil.level2.stream_write"(%out, %y) : (!cuvil.stream<i16, 2>, memref<2xi16>) -> ()
  }
  func.return
}
func.func @top(%x : !cuvil.axis<16>, %y : !cuvil.axis<16>) attributes {cuvil.role = #cuvil.role<dataflow>} {
  %a = "cuvil.level2.stream"() <{depth = 2 : i32}> : () -> !cuvil.stream<i8, 1>
  %b = "cuvil.level2.stream"() <{depth = 2 : i32}> : () -> !cuvil.stream<i16, 2>
  "cuvil.level2.axis_read"(%x, %a) <{count = 2 : i32, dtype = #cuvil.dtype<"i8">}> : (!cuvil.axis<16>, !cuvil.stream<i8, 1>) -> ()
  func.call @p(%a, %b) : (!cuvil.stream<i8, 1>, !cuvil.stream<i16, 2>) -> ()
  "cuvil.level2.axis_write"(%b, %y) <{count = 4 : i32, dtype = #cuvil.dtype<"i16">}> : (!cuvil.stream<i16, 2>, !cuvil.axis<16>) -> ()
  func.return
}
