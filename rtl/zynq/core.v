// $name as an IP core: a stream a port of the model, and registers (cuvil_control.sv). In Verilog of 2001, which every
// release of Vivado takes as the top of a core.
module ${top}_core (
    (* X_INTERFACE_INFO = "xilinx.com:signal:clock:1.0 ap_clk CLK" *)
    (* X_INTERFACE_PARAMETER = "ASSOCIATED_BUSIF s_axi_control:$streams, ASSOCIATED_RESET ap_rst_n" *)
    input  wire        ap_clk,
    (* X_INTERFACE_INFO = "xilinx.com:signal:reset:1.0 ap_rst_n RST" *)
    (* X_INTERFACE_PARAMETER = "POLARITY ACTIVE_LOW" *)
    input  wire        ap_rst_n,
    input  wire [4:0]  s_axi_control_awaddr,
    input  wire        s_axi_control_awvalid,
    output wire        s_axi_control_awready,
    input  wire [31:0] s_axi_control_wdata,
    input  wire [3:0]  s_axi_control_wstrb,
    input  wire        s_axi_control_wvalid,
    output wire        s_axi_control_wready,
    output wire [1:0]  s_axi_control_bresp,
    output wire        s_axi_control_bvalid,
    input  wire        s_axi_control_bready,
    input  wire [4:0]  s_axi_control_araddr,
    input  wire        s_axi_control_arvalid,
    output wire        s_axi_control_arready,
    output wire [31:0] s_axi_control_rdata,
    output wire [1:0]  s_axi_control_rresp,
    output wire        s_axi_control_rvalid,
    input  wire        s_axi_control_rready,
$ports
);
    reg rst = 1'b1;
    always @(posedge ap_clk) rst <= !ap_rst_n;

    wire run;
    cuvil_control control (
        .clk(ap_clk), .rst(rst),
        .awaddr(s_axi_control_awaddr), .awvalid(s_axi_control_awvalid), .awready(s_axi_control_awready),
        .wdata(s_axi_control_wdata), .wstrb(s_axi_control_wstrb),
        .wvalid(s_axi_control_wvalid), .wready(s_axi_control_wready),
        .bresp(s_axi_control_bresp), .bvalid(s_axi_control_bvalid), .bready(s_axi_control_bready),
        .araddr(s_axi_control_araddr), .arvalid(s_axi_control_arvalid), .arready(s_axi_control_arready),
        .rdata(s_axi_control_rdata), .rresp(s_axi_control_rresp),
        .rvalid(s_axi_control_rvalid), .rready(s_axi_control_rready),
        .run(run), .taken($taken), .ended($ended)
    );

$wires
    $top design_ (
        .clk(ap_clk), .rst(rst),
        $joined
    );
endmodule
