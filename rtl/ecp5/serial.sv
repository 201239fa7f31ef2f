// $name behind a serial line: rx and tx, CLOCKS_PER_BIT clock cycles a bit.
module ${name}_serial #(
    parameter CLOCKS_PER_BIT = $bit_clocks,
    parameter SILENCE = $silence
) (
    input  logic clk,
    input  logic rst,
    input  logic rx,
    output logic tx
);
    logic [7:0] rx_data, tx_data;
    logic rx_valid, tx_valid, tx_ready, design_rst;
    logic [$inputs*$axis-1:0] s_tdata;
    logic [$inputs-1:0] s_tvalid, s_tready;
    logic [$outputs*$axis-1:0] m_tdata;
    logic [$outputs-1:0] m_tvalid, m_tready;

    cuvil_uart_rx #(.CLOCKS(CLOCKS_PER_BIT)) receiver (
        .clk(clk), .rst(rst), .line(rx), .data(rx_data), .valid(rx_valid)
    );
    cuvil_uart_tx #(.CLOCKS(CLOCKS_PER_BIT)) sender (
        .clk(clk), .rst(rst), .data(tx_data), .valid(tx_valid), .ready(tx_ready), .line(tx)
    );
    cuvil_serial #(.INPUTS($inputs), .OUTPUTS($outputs), .AXIS($axis), .SILENCE(SILENCE), .ID(64'h$identity)) serial (
        .clk(clk), .rst(rst), .rx_data(rx_data), .rx_valid(rx_valid),
        .tx_data(tx_data), .tx_valid(tx_valid), .tx_ready(tx_ready), .design_rst(design_rst),
        .s_tdata(s_tdata), .s_tvalid(s_tvalid), .s_tready(s_tready),
        .m_tdata(m_tdata), .m_tvalid(m_tvalid), .m_tready(m_tready)
    );
    ${name}_top design_ (
        .clk(clk), .rst(design_rst),
        $ports
    );
endmodule
