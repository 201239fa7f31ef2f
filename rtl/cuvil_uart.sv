// A serial line, 8 data bits, no parity, one stop bit, the least significant bit first; CLOCKS clock cycles a bit, at least 4.

// `valid` is high for one cycle a byte. A byte without its stop bit is dropped.
module cuvil_uart_rx #(
    parameter CLOCKS = 50
) (
    input  logic       clk,
    input  logic       rst,
    input  logic       line,
    output logic [7:0] data,
    output logic       valid
);
    localparam COUNTS = $clog2(CLOCKS);
    logic [2:0] seen; // the line belongs to another clock: two registers before it is looked at
    logic [COUNTS-1:0] wait_for;
    logic [3:0] bits; // of a byte that are still to come, the start and the stop bit with them; 0: idle

    always_ff @(posedge clk) begin
        seen <= {seen[1:0], line};
        valid <= 1'b0;
        if (rst) begin
            bits <= '0;
            seen <= '1;
        end else if (bits == 0) begin
            if (seen[2] && !seen[1]) begin
                bits <= 4'd10;
                wait_for <= COUNTS'(CLOCKS / 2 - 1); // the middle of the start bit
            end
        end else if (wait_for != 0) begin
            wait_for <= wait_for - 1'b1;
        end else begin
            wait_for <= COUNTS'(CLOCKS - 1);
            bits <= bits == 4'd10 && seen[1] ? '0 : bits - 1'b1; // a start bit that doesn't last was a disturbance
            if (bits == 4'd1) valid <= seen[1];
            else data <= {seen[1], data[7:1]};
        end
    end
endmodule

module cuvil_uart_tx #(
    parameter CLOCKS = 50
) (
    input  logic       clk,
    input  logic       rst,
    input  logic [7:0] data,
    input  logic       valid,
    output logic       ready,
    output logic       line
);
    localparam COUNTS = $clog2(CLOCKS);
    logic [COUNTS-1:0] wait_for;
    logic [3:0] bits;
    logic [8:0] rest; // what follows the bit on the line, the stop bit last

    assign ready = bits == 0;
    always_ff @(posedge clk) begin
        if (rst) begin
            bits <= '0;
            line <= 1'b1;
        end else if (ready) begin
            line <= !valid;
            rest <= {1'b1, data};
            wait_for <= COUNTS'(CLOCKS - 1);
            if (valid) bits <= 4'd10;
        end else if (wait_for != 0) begin
            wait_for <= wait_for - 1'b1;
        end else begin
            wait_for <= COUNTS'(CLOCKS - 1);
            {rest, line} <= {1'b1, rest};
            bits <= bits - 1'b1;
        end
    end
endmodule
