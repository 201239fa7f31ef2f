"""The simulator with clocks: times worked out by hand, and by another simulation; no order of the host's matters."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cuvil_hw.adapters.zynq.simbuild import with_clocks
from cuvil_hw.contract.timing import ProcessTiming, StreamTiming, Timing
from cuvil_hw.errors import CuvilError, DeviceError
from tests.support.hls_networks import Design, by_the_cycle, loaded, random_network, raw

pytestmark = [pytest.mark.must_run, pytest.mark.needs("g++")]


def loop(name: str, trips: int, interval: int, body: str, streams: str = "Ints& in, Ints& out") -> str:
    head = f"static void {name}({streams}) {{\n  int a = 0, b = 0;\n  for (int i = 0; i < {trips}; ++i) {{\n"
    return f"{head}    #pragma HLS pipeline II={interval}\n    {body}\n  }}\n}}\n"


def process(timing: Timing, name: str) -> ProcessTiming:
    return next(p for p in timing.processes if p.name == name)


def stream(timing: Timing, name: str) -> StreamTiming:
    return next(s for s in timing.streams if s.name == name)


def case(samples: int, words: int) -> np.ndarray:
    return np.arange(samples * words, dtype=np.int16).reshape(samples, words)


CHAIN = Design(
    (8, 8), {"first": 2, "last": 2}, {"slow": "slow(first, last)"}, loop("slow", 8, 3, "out.write(2 * in.read());")
)


def test_a_chain_takes_the_interval_of_its_slowest_loop() -> None:
    with loaded(CHAIN, clock_hz=100.0) as simulation:
        found = simulation.timing({})
        outputs, seconds = simulation.run([case(3, 8)])
    np.testing.assert_array_equal(outputs[0], 2 * case(3, 8))
    # slow starts its n-th iteration in cycle 3n; the word it writes there, leave reads one cycle later.
    assert (found.cycles, found.first_cycles, found.period) == (24, 25, 1)
    assert seconds == (25 + 2 * 24) / 100.0
    assert found.bottlenecks == ("slow",)
    assert process(found, "slow") == ProcessTiming("slow", 24, 24, 0, 0)
    # What waits: enter for room (24 cycles for 8 iterations), leave for words.
    assert process(found, "enter") == ProcessTiming("enter", 24, 8, 0, 16)
    assert process(found, "leave") == ProcessTiming("leave", 24, 8, 16, 0)
    assert process(found, "DMA of x") == ProcessTiming("DMA of x", 24, 8, 0, 16)
    # A word is written in the cycle after one was read: two lie there in two of three cycles, one in the third.
    first = stream(found, "first")
    assert (first.writer, first.reader, first.depth, first.words, first.most) == ("enter", "slow", 2, 8, 2)
    assert (first.full, first.empty) == (16, 0)
    assert first.mean == pytest.approx((3 + 2) / 3)
    assert (stream(found, "last").mean, stream(found, "last").empty) == (pytest.approx(1 / 3), 16)


def test_a_fifo_of_one_word_moves_one_every_other_cycle() -> None:
    with loaded(CHAIN) as simulation:
        assert simulation.timing({"first": 1}).cycles == 24  # in three cycles there is time for that
        with pytest.raises(CuvilError, match="no stream 'third'; it has "):
            simulation.timing({"third": 1})
    quick = Design((8, 8), CHAIN.streams, {"f": "f(first, last)"}, loop("f", 8, 1, "out.write(in.read());"))
    with loaded(quick) as simulation:
        assert simulation.timing({}).cycles == 8
        assert simulation.timing({"first": 1}).cycles == 16
        assert simulation.timing({"first": 1}).bottlenecks == ()
        assert simulation.timing({}).bottlenecks == ("DMA of x", "enter", "f", "leave", "DMA of y")


def test_a_change_of_rates() -> None:
    pairs = loop("pairs", 8, 1, "a = in.read(); if (i % 2) out.write(a + b); b = a;")
    three = loop("three", 12, 1, "if (i % 3 == 0) a = in.read(); out.write(a);")
    design = Design(
        (8, 12), {"first": 2, "sums": 2, "last": 2}, {"pairs": "pairs(first, sums)", "three": "three(sums, last)"},
        pairs + three,
    )  # fmt: skip
    with loaded(design) as simulation:
        found = simulation.timing({})
        y = simulation.run([case(2, 8)])[0][0]
    np.testing.assert_array_equal(y, np.repeat(case(2, 8).reshape(2, 4, 2).sum(axis=2), 3, axis=1))
    # pairs reads words in cycles 2, 3; writes in 3; three reads in 4, and writes twelve words until 15, leave until 16.
    assert (found.cycles, found.first_cycles, found.bottlenecks) == (12, 16, ("three", "leave", "DMA of y"))
    assert process(found, "pairs").waits_for_room == 4
    assert stream(found, "sums").words == 4


def bypass(depth: int) -> Design:
    """x straight, and x four words late: a join of both needs all four from the straight way to lie somewhere."""
    copies = "a = in.read(); straight.write(a); around.write(a);"
    body = (
        loop("fork", 4, 1, copies, "Ints& in, Ints& straight, Ints& around")
        + "static void all(Ints& in, Ints& out) {\n  int held[4];\n"
        + "  for (int i = 0; i < 4; ++i) {\n    #pragma HLS PIPELINE\n    held[i] = in.read();\n  }\n"
        + "  for (int i = 0; i < 4; ++i) {\n    #pragma HLS PIPELINE\n    out.write(held[3 - i]);\n  }\n}\n"
        + loop(
            "join", 4, 1, "a = late.read(); out.write(a - straight.read());", "Ints& straight, Ints& late, Ints& out"
        )
    )
    return Design(
        (4, 4), {"first": 2, "straight": depth, "around": 2, "late": 2, "last": 2},
        {"fork": "fork(first, straight, around)", "all": "all(around, late)", "join": "join(straight, late, last)"},
        body,
    )  # fmt: skip


def test_a_bypass_of_a_process_that_reads_ahead() -> None:
    with loaded(bypass(4)) as simulation:
        found = simulation.timing({})
        deep = simulation.timing({"straight": 8})
    # fork writes in 2 … 5, `all` reads in 3 … 6 and writes in 7 … 10, join in 8 … 11, leave in 9 … 12.
    assert found.first_cycles == deep.first_cycles == 12
    # fork goes on in 9, when join has read in 8: `all`, which writes until 10, need not wait. With more room fork goes
    # on in 6 and 7, and in 8 has put a third word there before it waits for room in `around`.
    assert (found.cycles, found.bottlenecks) == (deep.cycles, deep.bottlenecks) == (8, ("all",))
    assert (stream(found, "straight").most, stream(deep, "straight").most) == (4, 7)


@pytest.mark.parametrize(("depth", "cycles"), [(1, 11), (2, 9), (3, 8), (9, 8)])
def test_a_fifo_too_short_for_bursts_costs_cycles(depth: int, cycles: int) -> None:
    """pace writes every other cycle, burst reads four words and then none for four cycles. After burst's first sample,
    in 3, 5, 7, 9, with a FIFO of one: pace writes in 10, 15, 17, 19, burst reads in 14, 16, 18, 20; and so on, 11
    later. Of two: writes in 10, 12, 15, 17, reads in 14, 15, 16, 18; 9 later. Of three: 10, 12, 14, 16 and 14 … 17."""
    body = loop("pace", 4, 2, "out.write(in.read());") + loop("burst", 8, 1, "if (i < 4) a = in.read(); out.write(a);")
    streams = {"first": 2, "between": depth, "last": 2}
    design = Design((4, 8), streams, {"pace": "pace(first, between)", "burst": "burst(between, last)"}, body)
    with loaded(design) as simulation:
        found = simulation.timing({})
    assert (found.cycles, found.period) == (cycles, 1)
    assert found.bottlenecks == (("pace", "burst", "leave", "DMA of y") if depth > 2 else ())
    assert [s.name for s in found.short] == (["between"] if depth < 3 else [])


def test_a_fifo_one_word_too_short_is_named_with_the_depth_that_would_do() -> None:
    with loaded(bypass(3)) as simulation, pytest.raises(DeviceError) as error:
        simulation.run([case(2, 4)])
    text = str(error.value)
    assert "sample 0: deadlock" in text
    assert "'fork' waits to write full stream 'straight' (3 of 3 words) since cycle 5" in text
    assert "'all' waits to read empty stream 'around' (0 of 2 words)" in text
    assert "'join' waits to read empty stream 'late' (0 of 2 words)" in text
    assert "'leave' waits to read empty stream 'last'" in text
    assert text.endswith("it goes on to its end where 'straight' has 4 words instead of 3")


def test_a_process_that_reads_what_nobody_writes_has_no_depth_that_helps() -> None:
    more = loop("more", 9, 1, "a = in.read(); if (i < 8) out.write(a);")
    with loaded(Design((8, 8), CHAIN.streams, {"more": "more(first, last)"}, more)) as simulation:
        with pytest.raises(DeviceError, match="'more' waits to read empty stream 'first'") as error:
            simulation.run([case(1, 8)])
        assert "goes on to its end" not in str(error.value)


# `poll` looks once a cycle: 1 where there was a word. `every` writes one in every third cycle.
POLL = Design(
    (4, 24), {"first": 2, "rare": 2, "last": 2}, {"every": "every(first, rare)", "poll": "poll(rare, last)"},
    loop("every", 4, 3, "out.write(in.read());")
    + loop("poll", 24, 1, "out.write(b < 4 && in.read_nb(a) ? (++b, 1) : 0);"),
)  # fmt: skip


def test_a_look_into_a_stream_sees_what_was_written_before() -> None:
    """every writes in cycles 3, 6, 9, 12; poll, whose iteration n (from 0) is in cycle n + 1, sees that one later."""
    with loaded(POLL) as simulation:
        y = simulation.run([case(1, 4)])[0][0][0]
        assert list(np.flatnonzero(y)) == [3, 6, 9, 12]
        # poll begins the second sample in 25. Two words of 15 and 18 lie there, the third is written in 26, when poll
        # has read in 25, the fourth in 29.
        y = simulation.run([case(2, 4)])[0][0]
        assert list(np.flatnonzero(y[1])) == [0, 1, 2, 5]
        assert simulation.timing({}).cycles == 24


@pytest.mark.parametrize("design", [CHAIN, bypass(4), POLL], ids=["chain", "bypass", "poll"])
def test_the_order_in_which_the_host_takes_processes_changes_nothing(design: Design) -> None:
    x = case(4, design.words[0])
    with loaded(design) as simulation:
        wanted = simulation.run([x])[0][0], raw(simulation)
        for seed in range(1, 12):
            simulation._library.functions.cuvil_sim_set_order(seed)
            np.testing.assert_array_equal(simulation.run([x])[0][0], wanted[0])
            found = raw(simulation)
            assert found["processes"] == wanted[1]["processes"]
            assert sorted(map(str, found["streams"])) == sorted(map(str, wanted[1]["streams"]))


def test_a_process_without_a_loop_moves_a_word_a_cycle() -> None:
    design = Design(
        (1, 1), CHAIN.streams, {"f": "f(first, last)"}, "static void f(Ints& a, Ints& b) { b.write(-a.read()); }"
    )
    with loaded(design) as simulation:
        found = simulation.timing({"first": 16, "last": 16})
        np.testing.assert_array_equal(simulation.run([case(5, 1)])[0][0], -case(5, 1))
    assert (found.cycles, found.first_cycles) == (1, 3)


def test_what_repeats_every_other_sample() -> None:
    slow = "static void f(Ints& in, Ints& out) {\n  CUVIL_STATIC int n = 0;\n  n = (n + 1) % 2;\n"
    slow += "  for (int i = 0; i < 4; ++i) {\n    #pragma HLS pipeline II=1\n    if (n) out.write(in.read());\n  }\n"
    slow += (
        "  for (int i = 0; i < 4; ++i) {\n    #pragma HLS pipeline II=3\n    if (!n) out.write(in.read());\n  }\n}\n"
    )
    with loaded(Design((4, 4), CHAIN.streams, {"f": "f(first, last)"}, slow)) as simulation:
        found = simulation.timing({})
        again = simulation.timing({})
    # 4 · 1 + 4 · 3 cycles, whichever of the two loops moves the words.
    assert found == again
    assert (found.cycles, found.period) == (16, 2)


SEEDS = range(4, 12)


@pytest.mark.share(seed=2)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_networks_take_the_cycles_of_another_simulation(seed: int) -> None:
    net = random_network(random.Random(seed))
    ends, finished = by_the_cycle(net, 5)
    with loaded(net.design()) as simulation:
        if not finished:
            with pytest.raises(DeviceError, match="deadlock"):
                simulation.run([case(5, net.words[0])])
            return
        for order in range(4):
            simulation._library.functions.cuvil_sim_set_order(order)
            simulation.run([case(5, net.words[0])])
            found = {p["name"]: [row[1] for row in p["samples"]] for p in raw(simulation)["processes"]}
            assert found == ends, f"order {order}"


def test_random_networks_do_finish_and_do_deadlock() -> None:
    nets = [random_network(random.Random(seed)) for seed in SEEDS]
    assert 4 <= sum(by_the_cycle(net, 2)[1] for net in nets) < len(nets)
    assert any(p.looks for net in nets for p in net.processes)


def test_pragmas_become_statements_on_their_line() -> None:
    text = b"for (;;) {\n  #pragma HLS pipeline II=2 rewind\n  #pragma HLS unroll\n#pragma HLS PIPELINE\n}\n// pipeline"
    clocked = b"for (;;) {\n  ::cuvil::sim::tick(2);\n  #pragma HLS unroll\n::cuvil::sim::tick(1);\n}\n// pipeline"
    assert with_clocks(text) == clocked
