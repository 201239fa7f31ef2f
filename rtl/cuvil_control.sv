// Registers of a core behind an AXI4-Lite port of 32 bits, by byte address:
//   0x00 CTRL     bit 0 AP_START: the core takes words; set by reset, so that a core runs that nobody starts. Bit 2 AP_IDLE:
//                 no batch is inside. Bit 7 AUTO_RESTART reads as bit 0: a core that was started goes on by itself.
//   0x10 CYCLES   of the last batch, from its first word in to the last word of a packet out; words that
//                 go in before the packet before is out aren't counted
//   0x14 BATCHES  packets out since reset
// Other addresses read as 0, and what is written there or to other bits is dropped.
module cuvil_control (
    input  logic        clk,
    input  logic        rst,
    input  logic [4:0]  awaddr,
    input  logic        awvalid,
    output logic        awready,
    input  logic [31:0] wdata,
    input  logic [3:0]  wstrb,
    input  logic        wvalid,
    output logic        wready,
    output logic [1:0]  bresp,
    output logic        bvalid,
    input  logic        bready,
    input  logic [4:0]  araddr,
    input  logic        arvalid,
    output logic        arready,
    output logic [31:0] rdata,
    output logic [1:0]  rresp,
    output logic        rvalid,
    input  logic        rready,
    output logic        run,    // words may be taken
    input  logic        taken,  // a word goes in
    input  logic        ended   // the last word of a packet goes out
);
    logic started, busy;
    logic [31:0] count, cycles, batches;

    // An address and its word are taken together, when the answer before has gone. Nothing is taken in reset.
    wire write = !rst & awvalid & wvalid & !bvalid;
    wire read = !rst & arvalid & !rvalid;
    assign run = !rst & started;
    assign awready = write;
    assign wready = write;
    assign arready = read;
    assign bresp = 2'b00;
    assign rresp = 2'b00;

    always_ff @(posedge clk) begin
        bvalid <= !rst & (write | (bvalid & !bready));
        rvalid <= !rst & (read | (rvalid & !rready));
        if (rst) started <= 1'b1;
        else if (write && awaddr[4:2] == 3'd0 && wstrb[0]) started <= wdata[0];
        if (read)
            case (araddr[4:2])
                3'd0: rdata <= {24'd0, started, 4'd0, !busy, 1'b0, started};
                3'd4: rdata <= cycles;
                3'd5: rdata <= batches;
                default: rdata <= 32'd0;
            endcase
    end

    always_ff @(posedge clk) begin
        busy <= !rst & (taken | (busy & !ended));
        count <= ended || !busy ? 32'd1 : count + 32'd1;
        if (rst) begin
            cycles <= 32'd0;
            batches <= 32'd0;
        end else if (ended) begin
            cycles <= count + 32'd1;
            batches <= batches + 32'd1;
        end
    end
endmodule
