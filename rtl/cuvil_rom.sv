// Constants: DEPTH words of WIDTH bits from FILE, one hexadecimal word a line. data is mem[addr] of the last edge at which en
// was high. FILE lies in the folder that the macro CUVIL_ROM_DIR names, or in a simulation +cuvil_rom=; the name ends in "/".
`ifndef CUVIL_ROM_DIR
`define CUVIL_ROM_DIR ""
`endif
module cuvil_rom #(
    parameter WIDTH = 8,
    parameter DEPTH = 1,
    parameter FILE = "",
    parameter PLACES = DEPTH > 1 ? $clog2(DEPTH) : 1
) (
    input  logic              clk,
    input  logic              en,
    input  logic [PLACES-1:0] addr,
    output logic [WIDTH-1:0]  data
);
    logic [WIDTH-1:0] held [0:DEPTH-1];
    generate
        if (FILE != "") begin : contents  // a tool may look at the module by itself
`ifdef VERILATOR
            initial begin
                string folder;
                if ($value$plusargs("cuvil_rom=%s", folder) == 0) folder = `CUVIL_ROM_DIR;
                $readmemh({folder, FILE}, held);
            end
`else
            initial $readmemh({`CUVIL_ROM_DIR, FILE}, held);
`endif
        end
    endgenerate
    always_ff @(posedge clk) if (en) data <= held[addr];
endmodule
