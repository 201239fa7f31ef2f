// COUNT elements of BITS bits come A a word and leave B a word, in order; the first lies in a word's lowest bits. Each tensor
// begins at a fresh word on both sides; spare elements of its last word are ignored on the way in and zero on the way out.
// The side with more words moves one a cycle; the first word of a tensor may enter where the last of the one before leaves.
module cuvil_gearbox #(
    parameter BITS = 8,
    parameter A = 1,
    parameter B = 1,
    parameter COUNT = 1
) (
    input  logic              clk,
    input  logic              rst,
    input  logic [A*BITS-1:0] in_data,
    input  logic              in_valid,
    output logic              in_ready,
    output logic              in_final,  // the word at in_data is the last of its tensor
    output logic [B*BITS-1:0] out_data,
    output logic              out_valid,
    input  logic              out_ready,
    output logic              out_final
);
    function automatic integer divisor(input integer a, input integer b);
        integer x, y, t;
        x = a;
        y = b;
        while (y != 0) begin
            t = x % y;
            x = y;
            y = t;
        end
        divisor = x;
    endfunction

    // Elements move in groups of as many as divide both words.
    localparam GROUP = divisor(A, B);
    localparam GA = A / GROUP;
    localparam GB = B / GROUP;
    localparam ROOM = GA + GB - 1;
    localparam INS = (COUNT + A - 1) / A;
    localparam OUTS = (COUNT + B - 1) / B;
    localparam TAIL = COUNT - (OUTS - 1) * B;  // elements of the last word
    localparam G = GROUP * BITS;
    localparam FILL = $clog2(ROOM + 1);
    localparam LEVELS = $clog2(GB);  // bits of the groups that stay where a word comes
    localparam TAKEN = $clog2(INS + 1);
    localparam GIVEN = OUTS > 1 ? $clog2(OUTS) : 1;

    logic [ROOM*G-1:0] held;
    logic [FILL-1:0] groups;
    logic [TAKEN-1:0] taken;
    logic [GIVEN-1:0] given;
    wire whole = taken == TAKEN'(INS);  // all of the tensor is here or has left
    assign out_final = given == GIVEN'(OUTS - 1);
    assign out_valid = whole || groups >= FILL'(GB);
    wire give = out_valid & out_ready;
    wire ends = give & out_final;
    wire [FILL-1:0] left = ends ? '0 : give ? groups - FILL'(GB) : groups;  // groups before what comes now
    assign in_ready = whole ? ends : left < FILL'(GB);
    assign in_final = (whole ? TAKEN'(0) : taken) == TAKEN'(INS - 1);
    wire take = in_valid & in_ready;

    genvar i;
    generate
        for (i = 0; i < B; i = i + 1) begin : lanes
            if (i < TAIL) begin : always_there
                assign out_data[i*BITS +: BITS] = held[i*BITS +: BITS];
            end else begin : spare
                assign out_data[i*BITS +: BITS] = out_final ? '0 : held[i*BITS +: BITS];
            end
        end
        // What comes, moved up by the groups that stay: by 1, 2, 4 … of them.
        for (i = 0; i <= LEVELS; i = i + 1) begin : steps
            wire [ROOM*G-1:0] moved;
            if (i == 0) begin : first
                if (GA == 1) assign moved = {ROOM{in_data}};
                else if (GA < ROOM) assign moved = {{((ROOM-GA)*G){1'b0}}, in_data};
                else assign moved = in_data;
            end else if (GA > 1) begin : shifted
                assign moved = left[i-1] ? steps[i-1].moved << (G << (i - 1)) : steps[i-1].moved;
            end else begin : same
                assign moved = steps[i-1].moved;
            end
        end
        // Group i after this edge: of what comes, behind those that stay; else as it was, moved down by a word that leaves.
        for (i = 0; i < ROOM; i = i + 1) begin : places
            wire [G-1:0] old;
            if (i + GB < ROOM) begin : moves
                assign old = give ? held[(i+GB)*G +: G] : held[i*G +: G];
            end else begin : stays
                assign old = held[i*G +: G];
            end
            wire mine = take && (i >= GB - 1 && GA > 1 || (GA == 1 ? left == FILL'(i) : left <= FILL'(i)));
            always_ff @(posedge clk) held[i*G +: G] <= mine ? steps[LEVELS].moved[i*G +: G] : old;
        end
    endgenerate

    always_ff @(posedge clk) begin
        groups <= rst ? '0 : left + (take ? FILL'(GA) : '0);
        taken <= rst ? '0 : (ends ? '0 : taken) + TAKEN'(take);
        given <= rst || ends ? '0 : given + GIVEN'(give);
    end
endmodule
