// The top of the bitstream: the clock, a reset when it starts, and the serial line.
module ${name}_board (
    input  logic clk_in,
    input  logic rx,
    output logic tx
);
    $clock
    logic [4:0] since_start = '0;
    always_ff @(posedge clk) begin
        if (!locked) since_start <= '0;
        else if (!since_start[4]) since_start <= since_start + 1'b1;
    end
    ${name}_serial line (.clk(clk), .rst(!since_start[4]), .rx(rx), .tx(tx));
endmodule
