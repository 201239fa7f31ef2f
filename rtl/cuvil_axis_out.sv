// An AXI4-Stream port out of a design: COUNT elements of BITS bits come LANES a word and leave in containers of CONTAINER
// bits, extended by their sign if SIGNED, AXIS / CONTAINER of them a word; spare bytes are zero. Each tensor begins at a fresh
// word. tlast marks a tensor's last word: of each, or with ENDS of those whose flag is set. tkeep leaves out the spare bytes
// of a word with tlast, no others.
module cuvil_axis_out #(
    parameter AXIS = 64,
    parameter BITS = 8,
    parameter CONTAINER = 8,
    parameter LANES = 1,
    parameter COUNT = 1,
    parameter ENDS = 0,
    parameter SIGNED = 1
) (
    input  logic                  clk,
    input  logic                  rst,
    input  logic [LANES*BITS-1:0] in_data,
    input  logic                  in_valid,
    output logic                  in_ready,
    input  logic                  ends_data,
    input  logic                  ends_valid,
    output logic                  ends_ready,
    output logic [AXIS-1:0]       m_axis_tdata,
    output logic                  m_axis_tvalid,
    input  logic                  m_axis_tready,
    output logic                  m_axis_tlast,
    output logic [AXIS/8-1:0]     m_axis_tkeep
);
    localparam PER = AXIS / CONTAINER;
    localparam TAIL = (COUNT - ((COUNT + PER - 1) / PER - 1) * PER) * (CONTAINER / 8);  // bytes of the last word

    logic [PER*BITS-1:0] elements;
    logic there, final_word, in_final;
    wire waits = (ENDS != 0) && final_word && !ends_valid;  // for the flag
    assign m_axis_tvalid = there && !waits;
    assign ends_ready = (ENDS != 0) && there && final_word && m_axis_tready;
    assign m_axis_tlast = final_word && (ENDS == 0 || ends_data);
    cuvil_gearbox #(.BITS(BITS), .A(LANES), .B(PER), .COUNT(COUNT)) gearbox (
        .clk(clk), .rst(rst),
        .in_data(in_data), .in_valid(in_valid), .in_ready(in_ready), .in_final(in_final),
        .out_data(elements), .out_valid(there), .out_ready(m_axis_tready && !waits), .out_final(final_word)
    );

    genvar i;
    generate
        for (i = 0; i < PER; i = i + 1) begin : containers
            assign m_axis_tdata[i*CONTAINER +: BITS] = elements[i*BITS +: BITS];
            if (CONTAINER > BITS) begin : extended
                assign m_axis_tdata[i*CONTAINER+BITS +: CONTAINER-BITS] =
                    {(CONTAINER-BITS){(SIGNED != 0) & elements[i*BITS+BITS-1]}};
            end
        end
        if (PER * CONTAINER < AXIS) begin : unused
            assign m_axis_tdata[AXIS-1 : PER*CONTAINER] = '0;
        end
        for (i = 0; i < AXIS / 8; i = i + 1) begin : bytes
            assign m_axis_tkeep[i] = (i < TAIL) || !m_axis_tlast;
        end
    endgenerate
endmodule
