// A memory with a port to write and one to read. rdata is the word that lay at raddr before the last edge at which ren was
// high, whatever was written there at that edge. KIND says what it is made of, as in cuvil_fifo: "bram", "uram", "lutram",
// "registers", or "": the tool decides.
`define CUVIL_RAM_PORTS \
    always_ff @(posedge clk) if (wen) held[waddr] <= wdata; \
    always_ff @(posedge clk) if (ren) rdata <= held[raddr];
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
        if (KIND == "bram") begin : block
            (* ram_style = "block" *) logic [WIDTH-1:0] held [0:DEPTH-1];
            `CUVIL_RAM_PORTS
        end else if (KIND == "uram") begin : ultra
            (* ram_style = "ultra" *) logic [WIDTH-1:0] held [0:DEPTH-1];
            `CUVIL_RAM_PORTS
        end else if (KIND == "lutram") begin : distributed
            (* ram_style = "distributed" *) logic [WIDTH-1:0] held [0:DEPTH-1];
            `CUVIL_RAM_PORTS
        end else if (KIND == "registers") begin : registers
            (* ram_style = "registers" *) logic [WIDTH-1:0] held [0:DEPTH-1];
            `CUVIL_RAM_PORTS
        end else begin : any
            logic [WIDTH-1:0] held [0:DEPTH-1];
            `CUVIL_RAM_PORTS
        end
    endgenerate
endmodule
