// Products that a design wants in logic, for Yosys' techmap: a row of partial products a bit, each added by a carry chain, as a fabric
// with carry chains builds them. Without it Yosys keeps sums and carries apart, which takes three times as many tables. Products by
// constants are left: of those, rows without a bit are none.
(* techmap_celltype = "$mul" *)
module cuvil_product (A, B, Y);
    parameter A_SIGNED = 0;
    parameter B_SIGNED = 0;
    parameter A_WIDTH = 1;
    parameter B_WIDTH = 1;
    parameter Y_WIDTH = 1;
    parameter _TECHMAP_CONSTMSK_A_ = 0;
    parameter _TECHMAP_CONSTMSK_B_ = 0;
    input [A_WIDTH-1:0] A;
    input [B_WIDTH-1:0] B;
    output [Y_WIDTH-1:0] Y;
    wire _TECHMAP_FAIL_ = !A_SIGNED || !B_SIGNED || &_TECHMAP_CONSTMSK_A_ || &_TECHMAP_CONSTMSK_B_;
    localparam W = A_WIDTH + 1;
    // The sum after each row, without the bits below it, which are the product's already. The last row counts negative.
    wire [W*B_WIDTH-1:0] sums;
    wire signed [A_WIDTH+B_WIDTH-1:0] whole;
    assign sums[W-1:0] = B_WIDTH == 1 ? -{A[A_WIDTH-1], A} & {W{B[0]}} : {A[A_WIDTH-1], A} & {W{B[0]}};
    genvar i;
    generate
        for (i = 1; i < B_WIDTH; i = i + 1) begin : rows
            wire [A_WIDTH-1:0] row = A & {A_WIDTH{B[i]}};
            wire last = i == B_WIDTH - 1;
            wire [W-1:0] halves, carries;
            assign whole[i-1] = sums[W*(i-1)];
            \$alu #(.A_SIGNED(1), .B_SIGNED(1), .A_WIDTH(A_WIDTH), .B_WIDTH(A_WIDTH), .Y_WIDTH(W)) add (
                .A(sums[W*(i-1)+1 +: A_WIDTH]), .B(row), .BI(last), .CI(last),
                .X(halves), .Y(sums[W*i +: W]), .CO(carries)
            );
        end
    endgenerate
    assign whole[A_WIDTH+B_WIDTH-1:B_WIDTH-1] = sums[W*(B_WIDTH-1) +: W];
    assign Y = whole;
endmodule
