// FROM: level2
// A sum of four words of two lanes: the lanes are added to one another first, then to what was kept, in one cycle.
// CHECK-LABEL: hw.module @sums(in %clk: !seq.clock, in %rst: i1, in %in_data: i16, in %in_valid: i1, in %out_ready: i1
// CHECK: %[[GO:.*]] = comb.and %{{.*}} {sv.namehint = "go"} : i1
// CHECK: seq.compreg.ce %{{.*}}, %clk, %{{.*}} reset %rst, %{{.*}} {sv.namehint = "i"} : i2
// CHECK: seq.compreg.ce %{{.*}}, %clk, %{{.*}} {sv.namehint = "acc_0"} : i12
// CHECK-LABEL: hw.module @model_top
// CHECK: "cuvil.hardware.fifo"(%clk, %rst, %{{.*}}) <{instance = "fifo_a", width = 16 : i32, depth = 2 : i32, kind = ""}>
// CHECK: "cuvil.hardware.axis_in"
// CHECK-SAME: instance = "read_x", axis = 32 : i32, bits = 8 : i32, container = 8 : i32, lanes = 2 : i32, count = 8 : i32
// CHECK: hw.instance "sums" @sums
// CHECK: "cuvil.hardware.axis_out"
// CHECK-LABEL: module sums (
// CHECK: output logic [11:0] out_data
// CHECK: logic [1:0] i;
// CHECK: [[LANES:w[0-9]+]] = $signed({{.*}}in_data[{{.*}}) + $signed({{.*}}in_data[{{.*}});
// CHECK: [[SUM:w[0-9]+]] = $signed([[LANES]]{{.*}}) + $signed({{.*}});
// CHECK: acc_0 <= [[SUM]];
// CHECK-LABEL: module model_top (
// CHECK: cuvil_fifo #(.WIDTH(12), .DEPTH(2), .KIND("")) fifo_b (
func.func @sums(%in : !cuvil.stream<i8, 2>, %out : !cuvil.stream<i12, 1>) attributes {cuvil.role = #cuvil.role<process>} {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %two = arith.constant 2 : index
  %three = arith.constant 3 : index
  %four = arith.constant 4 : index
  %none = arith.constant 0 : i12
  %w = memref.alloca() {cuvil.word = #cuvil.word, cuvil.name = #cuvil.name<"w">} : memref<2xi8>
  %acc = memref.alloca() {cuvil.word = #cuvil.word, cuvil.name = #cuvil.name<"acc">} : memref<1xi12>
  scf.for %i = %zero to %four step %one {
    "cuvil.level2.stream_read"(%in, %w) : (!cuvil.stream<i8, 2>, memref<2xi8>) -> ()
    %first = arith.cmpi eq, %i, %zero : index
    scf.if %first {
      memref.store %none, %acc[%zero] : memref<1xi12>
    }
    scf.for %l = %zero to %two step %one {
      %v = memref.load %w[%l] : memref<2xi8>
      %wide = arith.extsi %v : i8 to i12
      %held = memref.load %acc[%zero] : memref<1xi12>
      %sum = arith.addi %held, %wide : i12
      memref.store %sum, %acc[%zero] : memref<1xi12>
    } {cuvil.unroll = #cuvil.unroll}
    %last = arith.cmpi eq, %i, %three : index
    scf.if %last {
      "cuvil.level2.stream_write"(%out, %acc) : (!cuvil.stream<i12, 1>, memref<1xi12>) -> ()
    }
  } {cuvil.pipeline = #cuvil.pipeline<1>, cuvil.name = #cuvil.name<"i">}
  func.return
}
func.func @top(%x : !cuvil.axis<32>, %y : !cuvil.axis<32>) attributes {cuvil.role = #cuvil.role<dataflow>} {
  %a = "cuvil.level2.stream"() <{depth = 2 : i32, words = 4 : i32}> {cuvil.name = #cuvil.name<"a">} : () -> !cuvil.stream<i8, 2>
  %b = "cuvil.level2.stream"() <{depth = 2 : i32, words = 1 : i32}> {cuvil.name = #cuvil.name<"b">} : () -> !cuvil.stream<i12, 1>
  "cuvil.level2.axis_read"(%x, %a) <{count = 8 : i32, dtype = #cuvil.dtype<"i8">}> : (!cuvil.axis<32>, !cuvil.stream<i8, 2>) -> ()
  func.call @sums(%a, %b) : (!cuvil.stream<i8, 2>, !cuvil.stream<i12, 1>) -> ()
  "cuvil.level2.axis_write"(%b, %y) <{count = 1 : i32, dtype = #cuvil.dtype<"i12">}> : (!cuvil.stream<i12, 1>, !cuvil.axis<32>) -> ()
  func.return
}
