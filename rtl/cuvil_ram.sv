// A memory with a port to write and one to read. rdata is the word that lay at raddr before the last edge at which ren was
// high, whatever was written there at that edge. KIND: "block", "distributed", "registers", or "": the tool decides.
module cuvil_ram #(
    parameter WIDTH = 8,
    parameter DEPTH = 2,
    parameter KIND = "",
    parameter PLACES = DEPTH > 1 ? $clog2(DEPTH) : 1
) (
    input  logic              clk,
    input  logic              wen,
    input  logic [PLACES-1:0] waddr,
    input  logic [WIDTH-1:0]  wdata,
    input  logic              ren,
    input  logic [PLACES-1:0] raddr,
    output logic [WIDTH-1:0]  rdata
);
    generate
        if (KIND == "block") begin : block
            (* ram_style = "block" *) logic [WIDTH-1:0] held [0:DEPTH-1];
            always_ff @(posedge clk) if (wen) held[waddr] <= wdata;
            always_ff @(posedge clk) if (ren) rdata <= held[raddr];
        end else if (KIND == "distributed") begin : distributed
            (* ram_style = "distributed" *) logic [WIDTH-1:0] held [0:DEPTH-1];
            always_ff @(posedge clk) if (wen) held[waddr] <= wdata;
            always_ff @(posedge clk) if (ren) rdata <= held[raddr];
        end else if (KIND == "registers") begin : registers
            (* ram_style = "registers" *) logic [WIDTH-1:0] held [0:DEPTH-1];
            always_ff @(posedge clk) if (wen) held[waddr] <= wdata;
            always_ff @(posedge clk) if (ren) rdata <= held[raddr];
        end else begin : any
            logic [WIDTH-1:0] held [0:DEPTH-1];
            always_ff @(posedge clk) if (wen) held[waddr] <= wdata;
            always_ff @(posedge clk) if (ren) rdata <= held[raddr];
        end
    endgenerate
endmodule
