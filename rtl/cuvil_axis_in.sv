// An AXI4-Stream port into a design: COUNT elements a tensor, each of BITS bits in the low bits of a container of CONTAINER
// bits, AXIS / CONTAINER of them a word; out go LANES elements a word. Each tensor begins at a fresh word. With ENDS, a flag a
// tensor says whether its last word had tlast. tkeep is ignored.
module cuvil_axis_in #(
    parameter AXIS = 64,
    parameter BITS = 8,
    parameter CONTAINER = 8,
    parameter LANES = 1,
    parameter COUNT = 1,
    parameter ENDS = 0
) (
    input  logic                  clk,
    input  logic                  rst,
    input  logic [AXIS-1:0]       s_axis_tdata,
    input  logic                  s_axis_tvalid,
    output logic                  s_axis_tready,
    input  logic                  s_axis_tlast,
    input  logic [AXIS/8-1:0]     s_axis_tkeep,
    output logic [LANES*BITS-1:0] out_data,
    output logic                  out_valid,
    input  logic                  out_ready,
    output logic                  ends_data,
    output logic                  ends_valid,
    input  logic                  ends_ready
);
    localparam PER = AXIS / CONTAINER;

    logic [PER*BITS-1:0] elements;
    logic room, final_word, out_final;
    genvar i;
    generate
        for (i = 0; i < PER; i = i + 1) begin : containers
            assign elements[i*BITS +: BITS] = s_axis_tdata[i*CONTAINER +: BITS];
        end
    endgenerate

    // A last word waits until the flag of the tensor before has been read.
    wire held_up = (ENDS != 0) && final_word && ends_valid;
    assign s_axis_tready = room && !held_up;
    cuvil_gearbox #(.BITS(BITS), .A(PER), .B(LANES), .COUNT(COUNT)) gearbox (
        .clk(clk), .rst(rst),
        .in_data(elements), .in_valid(s_axis_tvalid && !held_up), .in_ready(room), .in_final(final_word),
        .out_data(out_data), .out_valid(out_valid), .out_ready(out_ready), .out_final(out_final)
    );

    generate
        if (ENDS != 0) begin : flags
            wire ended = s_axis_tvalid && s_axis_tready && final_word;
            always_ff @(posedge clk) begin
                ends_valid <= !rst && (ended || (ends_valid && !ends_ready));
                if (ended) ends_data <= s_axis_tlast;
            end
        end else begin : no_flags
            assign ends_valid = 1'b0;
            assign ends_data = 1'b0;
        end
    endgenerate
endmodule
