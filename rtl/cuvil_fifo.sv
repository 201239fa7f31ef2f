// A FIFO of DEPTH words, exactly. A word moves where valid and ready are both high at a rising edge. in_ready and out_valid
// come from registers; the first word shows on out_data by itself.
//
// KIND says what it is made of: "srl" (shift registers), "lutram", "bram", "registers"; "": two words and fewer registers,
// up to 1,024 bits or 32 words shift registers, else block memory. A word that enters an empty FIFO shows after one cycle,
// in "bram" after two.
module cuvil_fifo #(
    parameter WIDTH = 8,
    parameter DEPTH = 2,
    parameter KIND = ""
) (
    input  logic             clk,
    input  logic             rst,
    input  logic [WIDTH-1:0] in_data,
    input  logic             in_valid /* verilator public_flat_rd */,
    output logic             in_ready /* verilator public_flat_rd */,
    output logic [WIDTH-1:0] out_data,
    output logic             out_valid /* verilator public_flat_rd */,
    input  logic             out_ready /* verilator public_flat_rd */
);
    localparam FEW = DEPTH <= 2 || KIND == "registers";
    localparam SHIFTS = !FEW && (KIND == "srl" || (KIND == "" && (DEPTH * WIDTH <= 1024 || DEPTH <= 32)));
    localparam BLOCK = !FEW && !SHIFTS && KIND != "lutram";
`ifdef CUVIL_FIFO_MEMORY  // simulates shift registers as a memory, which moves nothing
    localparam MOVES = 0;
`else
    localparam MOVES = FEW || SHIFTS;
`endif
    localparam COUNTS = $clog2(DEPTH + 1);
    localparam PLACES = DEPTH > 1 ? $clog2(DEPTH) : 1;

    wire push = in_valid & in_ready;
    wire pop = out_valid & out_ready;
    logic [COUNTS-1:0] words /* verilator public_flat_rd */;
    wire [COUNTS-1:0] words_next = words + COUNTS'(push) - COUNTS'(pop);

`ifdef VERILATOR
    // A simulation may make it smaller than it is.
    logic [31:0] limit /* verilator public_flat_rw */ = DEPTH;
    wire room = 32'(words_next) < limit;
`else
    wire room = words_next != COUNTS'(DEPTH);
`endif

    always_ff @(posedge clk) begin
        words <= rst ? '0 : words_next;
        in_ready <= !rst && room;
    end

    generate
        if (MOVES) begin : shifts
            // The oldest word lies at `oldest`; a new one pushes all of them on.
            logic [PLACES-1:0] oldest;
            always_ff @(posedge clk) begin
                oldest <= rst || words_next == 0 ? '0 : PLACES'(words_next - 1'b1);
                out_valid <= !rst && words_next != 0;
            end
            genvar b;
            for (b = 0; b < WIDTH; b = b + 1) begin : bits
                (* shreg_extract = FEW ? "no" : "yes" *) logic [DEPTH-1:0] held;
                if (DEPTH == 1) begin : one
                    always_ff @(posedge clk) if (push) held <= in_data[b];
                end else begin : several
                    always_ff @(posedge clk) if (push) held <= {held[DEPTH-2:0], in_data[b]};
                end
                assign out_data[b] = held[oldest];
            end
        end else begin : memory
            logic [PLACES-1:0] head, tail;
            localparam [PLACES-1:0] LAST = PLACES'(DEPTH - 1);
            if (BLOCK) begin : block
                // The word at out_data has left the memory already. No edge reads a word that it writes.
                (* ram_style = "block", no_rw_check *) logic [WIDTH-1:0] held [0:DEPTH-1];
                wire fetch = words != COUNTS'(out_valid) && (!out_valid || out_ready);
                always_ff @(posedge clk) begin
                    if (push) held[tail] <= in_data;
                    if (fetch) out_data <= held[head];
                    out_valid <= !rst && (fetch || (out_valid && !out_ready));
                    if (rst) head <= '0;
                    else if (fetch) head <= head == LAST ? '0 : head + 1'b1;
                end
            end else begin : distributed
                (* ram_style = "distributed", no_rw_check *) logic [WIDTH-1:0] held [0:DEPTH-1];
                assign out_data = held[head];
                always_ff @(posedge clk) begin
                    if (push) held[tail] <= in_data;
                    out_valid <= !rst && words_next != 0;
                    if (rst) head <= '0;
                    else if (pop) head <= head == LAST ? '0 : head + 1'b1;
                end
            end
            always_ff @(posedge clk) begin
                if (rst) tail <= '0;
                else if (push) tail <= tail == LAST ? '0 : tail + 1'b1;
            end
        end
    endgenerate
endmodule
