// Constants: DEPTH words of WIDTH bits from FILE, one hexadecimal word a line. data is mem[addr] of the last edge at which en
// was high. FILE lies in the folder that the macro CUVIL_ROM_DIR names, or in a simulation +cuvil_rom=; the name ends in "/".
// KIND: "bram", "lutram", or "": the tool decides.
`ifndef CUVIL_ROM_DIR
`define CUVIL_ROM_DIR ""
`endif
`ifdef YOSYS  // has another word for tables of logic
`define CUVIL_ROM_LOGIC "logic"
`else
`define CUVIL_ROM_LOGIC "distributed"
`endif
`ifdef VERILATOR
`define CUVIL_ROM_READ string folder; \
    if ($value$plusargs("cuvil_rom=%s", folder) == 0) folder = `CUVIL_ROM_DIR; \
    $readmemh({folder, FILE}, held);
`else
`define CUVIL_ROM_READ $readmemh({`CUVIL_ROM_DIR, FILE}, held);
`endif
// A tool may look at the module by itself, without a file.
`define CUVIL_ROM_WORDS \
    if (FILE != "") begin : contents \
        initial begin `CUVIL_ROM_READ end \
    end \
    always_ff @(posedge clk) if (en) data <= held[addr];
module cuvil_rom #(
    parameter WIDTH = 8,
    parameter DEPTH = 1,
    parameter FILE = "",
    parameter KIND = "",
    parameter PLACES = DEPTH > 1 ? $clog2(DEPTH) : 1
) (
    input  logic              clk,
    input  logic              en,
    input  logic [PLACES-1:0] addr,
    output logic [WIDTH-1:0]  data
);
    generate
        if (KIND == "bram") begin : block
            (* rom_style = "block" *) logic [WIDTH-1:0] held [0:DEPTH-1];
            `CUVIL_ROM_WORDS
        end else if (KIND == "lutram") begin : distributed
            (* rom_style = `CUVIL_ROM_LOGIC *) logic [WIDTH-1:0] held [0:DEPTH-1];
            `CUVIL_ROM_WORDS
        end else begin : any
            logic [WIDTH-1:0] held [0:DEPTH-1];
            `CUVIL_ROM_WORDS
        end
    endgenerate
endmodule
