// Answers a host's requests, which come byte by byte, and feeds a design with AXI4-Stream ports. The host speaks first, waits for
// the answer, and asks again when none comes:
//
//   request  C5 number ports length payload crc    ports: the input's number in the high half, the output's in the low half
//   answer   5C number flags length payload crc    flags: 1 payload taken, 2 the design is reset, 4 there is no such port
//
// crc: two bytes, the high one first, CRC-16 with polynomial 1021 and initial value FFFF of all after the first byte. A
// request with a wrong one, or one that stops for SILENCE cycles, is dropped without an answer. Number 0 resets the design;
// the answer is ID. The number of the request before means that its answer was lost: it is sent again and nothing else
// happens. Otherwise the payload goes to the input as a whole or, where there is no room for it, not at all (flag 1 is 0),
// and the answer brings what the output has by now, at most 255 bytes.
module cuvil_serial #(
    parameter INPUTS = 1,
    parameter OUTPUTS = 1,
    parameter AXIS = 32,
    parameter SILENCE = 1000000,
    parameter [63:0] ID = 64'd0
) (
    input  logic                    clk,
    input  logic                    rst,
    input  logic [7:0]              rx_data,
    input  logic                    rx_valid,
    output logic [7:0]              tx_data,
    output logic                    tx_valid,
    input  logic                    tx_ready,
    output logic                    design_rst,
    output logic [INPUTS*AXIS-1:0]  s_tdata,
    output logic [INPUTS-1:0]       s_tvalid,
    input  logic [INPUTS-1:0]       s_tready,
    input  logic [OUTPUTS*AXIS-1:0] m_tdata,
    input  logic [OUTPUTS-1:0]      m_tvalid,
    output logic [OUTPUTS-1:0]      m_tready
);
    localparam ROOM = 1024; // bytes of each port's FIFO
    localparam COUNTS = $clog2(ROOM + 1);
    localparam [3:0] SYNC = 0, NUMBER = 1, PORTS = 2, LENGTH = 3, BODY = 4, HIGH = 5, LOW = 6, JUDGE = 7, CLEAR = 8, FEED = 9,
        COLLECT = 10, SEND = 11;

    function automatic [15:0] crc_with(input [15:0] crc_was, input [7:0] value);
        integer k;
        begin
            crc_with = crc_was ^ {value, 8'd0};
            for (k = 0; k < 8; k = k + 1) crc_with = crc_with[15] ? (crc_with << 1) ^ 16'h1021 : crc_with << 1;
        end
    endfunction

    logic [3:0] state;
    logic [15:0] crc;
    logic [7:0] number, answered, length, answer_length, at, flags;
    logic [3:0] in_port, out_port;
    logic any_answered;
    logic [31:0] silent;

    // Payloads lie in two memories until they are taken, and until the next request.
    logic [7:0] request [0:255];
    logic [7:0] answer [0:255];
    logic [7:0] from_request, from_answer;

    // Bytes to and from the ports.
    wire [INPUTS-1:0] in_room;
    wire [OUTPUTS-1:0] out_any;
    wire [OUTPUTS*8-1:0] out_bytes;
    logic [INPUTS-1:0] push;
    logic [OUTPUTS-1:0] pop;
    wire known = in_port < INPUTS && out_port < OUTPUTS;
    wire room = known && |(in_room & (INPUTS'(1) << in_port));
    wire any = |(out_any & (OUTPUTS'(1) << out_port));
    wire [7:0] out_byte = 8'(out_bytes >> {out_port, 3'd0});

    // FEED: one cycle to read the first byte, then one a byte.
    logic reading;
    assign push = state == FEED && reading ? INPUTS'(1) << in_port : '0;
    assign pop = state == COLLECT && any && at != 8'hff ? OUTPUTS'(1) << out_port : '0;

    // SEND: 5C number flags length payload crc; `part` counts what isn't payload.
    logic [2:0] part;
    logic fetched;
    wire at_body = state == SEND && part == 3'd4 && fetched;
    wire [7:0] next = at + 8'(state == FEED ? reading : tx_ready && at_body);
    assign tx_valid = state == SEND && (part != 3'd4 || fetched);
    always_comb begin
        case (part)
            3'd0: tx_data = 8'h5c;
            3'd1: tx_data = number;
            3'd2: tx_data = flags;
            3'd3: tx_data = answer_length;
            3'd4: tx_data = from_answer;
            3'd5: tx_data = crc[15:8];
            default: tx_data = crc[7:0];
        endcase
    end

    wire store = rx_valid && state == BODY;
    wire collect = |pop;
    wire identify = state == CLEAR && at < 8'd8;
    always_ff @(posedge clk) begin
        if (store) request[at] <= rx_data;
        from_request <= request[next];
        if (collect || identify) answer[at] <= identify ? 8'(ID >> {~at[2:0], 3'd0}) : out_byte;
        from_answer <= answer[next];
    end

    always_ff @(posedge clk) begin
        design_rst <= rst || state == CLEAR;
        reading <= state == FEED && (!reading || next != length);
        fetched <= state == SEND && part == 3'd4 && !(at_body && tx_ready);
        silent <= rx_valid || state == SYNC ? '0 : silent + 1'b1;
        case (state)
            SYNC: begin
                crc <= '1;
                at <= '0;
                if (rx_valid && rx_data == 8'hc5) state <= NUMBER;
            end
            JUDGE: begin
                at <= '0;
                crc <= '1;
                part <= '0;
                any_answered <= 1'b1;
                answered <= number;
                if (number == 0) state <= CLEAR;
                else if (any_answered && number == answered) state <= SEND;
                else begin
                    flags <= {5'd0, !known, 1'b0, room};
                    answer_length <= '0;
                    state <= !known ? SEND : room && length != 0 ? FEED : COLLECT;
                end
            end
            CLEAR: begin // long enough for every register of the design
                at <= at + 1'b1;
                flags <= 8'd2;
                answer_length <= 8'd8;
                if (at == 8'd63) begin
                    at <= '0;
                    state <= SEND;
                end
            end
            FEED: begin
                if (reading) at <= next;
                if (reading && next == length) begin
                    at <= '0;
                    state <= COLLECT;
                end
            end
            COLLECT: begin
                if (collect) at <= at + 1'b1;
                else begin
                    answer_length <= at;
                    at <= '0;
                    state <= SEND;
                end
            end
            SEND: if (tx_valid && tx_ready) begin
                if (part != 3'd0 && part <= 3'd4) crc <= crc_with(crc, tx_data);
                if (part == 3'd4) at <= next;
                if (part == 3'd3 && answer_length == 0) part <= 3'd5;
                else if (part != 3'd4 || next == answer_length) part <= part + 1'b1;
                if (part == 3'd6) state <= SYNC;
            end
            default: if (rx_valid) begin // NUMBER to LOW: bytes of a request
                crc <= crc_with(crc, rx_data);
                state <= state + 1'b1;
                case (state)
                    NUMBER: number <= rx_data;
                    PORTS: {in_port, out_port} <= rx_data;
                    LENGTH: begin
                        length <= rx_data;
                        if (rx_data == 0) state <= HIGH;
                    end
                    BODY: begin
                        at <= at + 1'b1;
                        if (at + 1'b1 != length) state <= BODY;
                    end
                    LOW: if (crc_with(crc, rx_data) != 0) state <= SYNC;
                    default: ;
                endcase
            end else if (silent == SILENCE) state <= SYNC;
        endcase
        if (rst) begin
            state <= SYNC;
            any_answered <= 1'b0;
        end
    end

    genvar i;
    generate
        for (i = 0; i < INPUTS; i = i + 1) begin : inputs
            logic [COUNTS-1:0] held;
            wire [7:0] value;
            wire valid, ready;
            cuvil_fifo #(.WIDTH(8), .DEPTH(ROOM), .KIND("bram")) bytes (
                .clk(clk), .rst(design_rst),
                .in_data(from_request), .in_valid(push[i]), .in_ready(),
                .out_data(value), .out_valid(valid), .out_ready(ready)
            );
            assign in_room[i] = held <= COUNTS'(ROOM - 255);
            // Bytes become words, the first byte in the low bits.
            logic [AXIS-1:0] word;
            logic [7:0] have;
            assign s_tdata[i*AXIS +: AXIS] = word;
            assign s_tvalid[i] = have == AXIS / 8;
            assign ready = !s_tvalid[i];
            always_ff @(posedge clk) begin
                held <= design_rst ? '0 : held + COUNTS'(push[i]) - COUNTS'(valid && ready);
                if (valid && ready) word <= AXIS'({value, word} >> 8);
                if (design_rst || (s_tvalid[i] && s_tready[i])) have <= '0;
                else if (valid && ready) have <= have + 1'b1;
            end
        end
        for (i = 0; i < OUTPUTS; i = i + 1) begin : outputs
            logic [AXIS-1:0] word;
            logic [7:0] left;
            wire ready;
            assign m_tready[i] = left == 0 && !design_rst;
            always_ff @(posedge clk) begin
                if (m_tvalid[i] && m_tready[i]) word <= m_tdata[i*AXIS +: AXIS];
                else if (left != 0 && ready) word <= word >> 8;
                if (design_rst) left <= '0;
                else if (m_tvalid[i] && m_tready[i]) left <= AXIS / 8;
                else if (left != 0 && ready) left <= left - 1'b1;
            end
            cuvil_fifo #(.WIDTH(8), .DEPTH(ROOM), .KIND("bram")) bytes (
                .clk(clk), .rst(design_rst),
                .in_data(word[7:0]), .in_valid(left != 0), .in_ready(ready),
                .out_data(out_bytes[i*8 +: 8]), .out_valid(out_any[i]), .out_ready(pop[i])
            );
        end
    endgenerate
endmodule
