// Blocks and registers by hand; what is wiring stands where it is used.
// CHECK-LABEL: module m (
// CHECK-NEXT: input logic clk,
// CHECK-NEXT: input logic rst,
// CHECK-NEXT: input logic [3:0] a,
// CHECK-NEXT: input logic en,
// CHECK-NEXT: output logic [7:0] y,
// CHECK-NEXT: output logic [3:0] z
// CHECK: logic [3:0] count;
// CHECK: assign w{{[0-9]+}} = count + 4'h1;
// CHECK: assign w{{[0-9]+}} = $signed(a) * $signed({1'b0, count});
// CHECK: assign w{{[0-9]+}} = $signed(a) < $signed(count);
// CHECK: always_ff @(posedge clk)
// CHECK-NEXT: if (rst) begin
// CHECK-NEXT: count <= 4'hf;
// CHECK-NEXT: end else if (en) begin
// CHECK-NEXT: count <=
// CHECK: cuvil_rom #(.WIDTH(8), .DEPTH(16), .FILE("t.hex"), .KIND("bram")) table_u2 (
// CHECK: .addr(count)
// CHECK: cuvil_ram #(.WIDTH(4), .DEPTH(3), .KIND("lutram")) held (
// CHECK: .waddr(a[1:0])
// CHECK: assign y = ~
hw.module @m(in %clk: !seq.clock, in %rst: i1, in %a: i4, in %en: i1, out y: i8, out z: i4) {
  %one = hw.constant 1 : i4
  %first = hw.constant -1 : i4
  %zero = hw.constant 0 : i4
  %ones = hw.constant -1 : i8
  %count = seq.compreg.ce %next, %clk, %en reset %rst, %first {sv.namehint = "count"} : i4
  %up = comb.add %count, %one : i4
  %top = comb.extract %a from 3 : (i4) -> i1
  %more = comb.replicate %top : (i1) -> i4
  %wide = comb.concat %more, %a : i4, i4
  %natural = comb.concat %zero, %count : i4, i4
  %product = comb.mul %wide, %natural : i8
  %less = comb.icmp slt %a, %count : i4
  %next = comb.mux %less, %up, %zero : i4
  %word = "cuvil.hardware.rom"(%clk, %en, %count) <{instance = "table", width = 8 : i32, depth = 16 : i32, file = "t.hex", kind = "bram"}> : (!seq.clock, i1, i4) -> i8
  %at = comb.extract %a from 0 : (i4) -> i2
  %kept = "cuvil.hardware.ram"(%clk, %en, %at, %count, %en, %at) <{instance = "held", width = 4 : i32, depth = 3 : i32, kind = "lutram"}> : (!seq.clock, i1, i2, i4, i1, i2) -> i4
  %sum = comb.add %product, %word : i8
  %not = comb.xor %sum, %ones : i8
  hw.output %not, %kept : i8, i4
}
