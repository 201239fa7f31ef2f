// The host's end of a serial line, for simulation: bytes as words, both ways. A byte that comes before the one before it was
// taken is kept in a FIFO.
module cuvil_line #(
    parameter CLOCKS = 4
) (
    input  logic       clk,
    input  logic       rst,
    input  logic [7:0] host_data,
    input  logic       host_valid,
    output logic       host_ready,
    output logic [7:0] board_data,
    output logic       board_valid,
    input  logic       board_ready,
    output logic       to_board,
    input  logic       from_board
);
    logic [7:0] data;
    logic valid, room;
    cuvil_uart_tx #(.CLOCKS(CLOCKS)) tx (
        .clk(clk), .rst(rst), .data(host_data), .valid(host_valid), .ready(host_ready), .line(to_board)
    );
    cuvil_uart_rx #(.CLOCKS(CLOCKS)) rx (.clk(clk), .rst(rst), .line(from_board), .data(data), .valid(valid));
    cuvil_fifo #(.WIDTH(8), .DEPTH(1024)) bytes (
        .clk(clk), .rst(rst), .in_data(data), .in_valid(valid), .in_ready(room),
        .out_data(board_data), .out_valid(board_valid), .out_ready(board_ready)
    );
endmodule
