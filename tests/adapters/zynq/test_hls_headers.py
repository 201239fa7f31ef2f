"""The C++ side of the zynq simulator: integers against ap_types, streams, dataflow tasks, packing, counters."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuvil_hw.adapters.zynq.simbuild import FLAGS, host_flags
from cuvil_hw.data import folder
from tests.support.xilinx import ap_types

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

Array = np.ndarray[Any, np.dtype[Any]]
Output = tuple[int, type[np.integer[Any]]]  # elements, NumPy type

SIM, HLS = folder("sim"), folder("hls")
WARNINGS = ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]


def fast_flags() -> list[str]:
    return [*WARNINGS, f"-I{SIM / 'hls'}", f"-I{SIM / 'dataflow'}", f"-I{HLS}"]


def xilinx_flags() -> list[str]:
    # Our runner and helpers come last: whatever Xilinx has is taken from Xilinx.
    theirs = [f"-I{SIM / 'xilinx_compat'}", "-isystem", str(ap_types()), f"-I{HLS}"]
    return [*theirs, "-idirafter", str(SIM / "hls"), "-idirafter", str(SIM / "dataflow"), "-w"]


def compiled(folder_: Path, name: str, source: str, flags: list[str]) -> Path:
    path = folder_ / f"{name}.cpp"
    path.write_text(source)
    command = ["g++", "-std=c++14", "-pthread", *flags, str(path), "-o", str(folder_ / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    return folder_ / name


def output(program: Path) -> str:
    return subprocess.run([str(program)], capture_output=True, text=True, check=True, timeout=120).stdout


# ---- integers ------------------------------------------------------------------------------------------------------

OPERATIONS = (Path(__file__).parent / "hls_operations.cpp").read_text()

PAIRS = [  # a, b, and the type as which b is compared with a
    ("ap_int<1>", "ap_uint<1>", "ap_uint<1>"), ("ap_int<4>", "ap_int<8>", "ap_int<8>"),
    ("ap_uint<3>", "ap_int<12>", "ap_uint<12>"), ("ap_int<16>", "ap_int<16>", "ap_int<16>"),
    ("ap_uint<8>", "ap_uint<8>", "ap_uint<8>"), ("ap_int<20>", "ap_int<18>", "ap_int<18>"),
    ("ap_int<32>", "ap_uint<32>", "ap_int<32>"), ("ap_int<33>", "ap_int<31>", "ap_int<31>"),
    ("ap_uint<17>", "ap_int<40>", "ap_uint<40>"), ("ap_int<64>", "ap_int<16>", "ap_int<16>"),
    ("ap_int<63>", "ap_int<64>", "ap_int<64>"), ("ap_uint<5>", "ap_uint<48>", "ap_uint<48>"),
    ("ap_int<40>", "ap_uint<12>", "ap_uint<12>"),
]  # fmt: skip


@pytest.mark.slow
def test_integer_operations_give_the_bits_and_widths_of_xilinx(tmp_path: Path) -> None:
    calls = "\n".join(f'    pair<{a}, {b}, {c}>("{a} {b}");' for a, b, c in PAIRS)
    source = OPERATIONS.replace("PAIRS", calls)
    theirs = output(compiled(tmp_path, "xilinx", source, ["-O0", *xilinx_flags()])).splitlines()
    for name, flags in (("unsigned", ["-O1"]), ("signed", ["-O1", "-fwrapv", "-DCUVIL_SIM_WRAPV"])):
        ours = output(compiled(tmp_path, name, source, [*flags, *fast_flags()])).splitlines()
        assert int(ours[-1].split()[1]) > 60_000
        different = [f"{a}  !=  {b}" for a, b in zip(ours, theirs, strict=True) if a != b]
        assert not different, "\n".join(different)


SUMS = r"""
#include <ap_int.h>
#include <cstdio>
template <int W, int A, int B> void sum(const char* name) {
    unsigned long long seed = 88172645463325252ull;
    for (int round = 0; round < 50; ++round) {
        ap_int<A> a[16];
        ap_int<B> b[16];
        ap_int<W> total = -round, product = round + 1;
        ap_uint<W> bits = round;
        for (int i = 0; i < 16; ++i) {
            seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
            a[i] = ap_int<A>(round == 0 ? -(1ll << (A - 1)) : (long long)seed);
            b[i] = ap_int<B>(round == 0 ? -(1ll << (B - 1)) : (long long)(seed >> 20));
        }
#pragma GCC unroll 1
        for (int i = 0; i < 16; ++i) total += a[i] * b[i];
#pragma GCC unroll 1
        for (int i = 0; i < 16; ++i) bits -= a[i] * (b[i] + 128);
#pragma GCC unroll 1
        for (int i = 0; i < 16; ++i) product *= a[i] | 1;
        std::printf("%s %lld %llu %lld\n", name, total.to_int64(), bits.to_uint64(), product.to_int64());
    }
}
int main() {
    CALLS
}
"""


def test_sums_that_wrap_have_the_bits_of_xilinx_however_they_are_vectorised(tmp_path: Path) -> None:
    widths = [(32, 16, 16), (28, 16, 16), (16, 8, 8), (32, 8, 8), (21, 9, 8), (64, 32, 32), (40, 18, 25), (8, 4, 8)]
    calls = "\n".join(f'    sum<{w}, {a}, {b}>("{w} {a} {b}");' for w, a, b in widths)
    source = SUMS.replace("CALLS", calls)
    theirs = output(compiled(tmp_path, "xilinx", source, ["-O1", *xilinx_flags()]))
    for name, flags in (("plain", ["-O1"]), ("host", [*FLAGS, *host_flags()])):
        built = compiled(tmp_path, name, source, [*(f for f in flags if f != "-shared"), *fast_flags()])
        assert output(built) == theirs


def steps_of(a: int, b: int, count: int) -> int:
    """Steps in which elements that come `a` at a time leave `b` at a time, one word each way a step at the most."""
    ins, outs = -(-count // a), -(-count // b)
    held = taken = given = steps = 0
    while given < outs:
        if held < b and taken < ins:
            held, taken = held + a, taken + 1
        if held >= b or taken == ins:
            held, given = held - b, given + 1
        steps += 1
    assert taken == ins
    return steps


def test_a_port_takes_as_many_steps_as_the_side_with_more_words(tmp_path: Path) -> None:
    cases = [(a, b, count) for a in (1, 2, 4, 8) for b in (1, 3, 4, 6, 8, 12) for count in (b, 5 * b, 7, 48)]
    shown = "".join(f'std::printf("%d\\n", cuvil::axis::gears<{a}, {b}, {n}>::steps);\n' for a, b, n in cases)
    source = f"#include <cuvil_hls.h>\n#include <cstdio>\nint main() {{\n{shown}}}\n"
    steps = [int(line) for line in output(compiled(tmp_path, "gears", source, ["-O0", *fast_flags()])).split()]
    for (a, b, count), found in zip(cases, steps, strict=True):
        assert found == steps_of(a, b, count), (a, b, count)
        assert max(-(-count // a), -(-count // b)) <= found <= max(-(-count // a), -(-count // b)) + (count % b > 0)
    assert steps_of(8, 3, 3072) == 1024  # three lanes of 8 bits on 64 bits: a pixel a step


# ---- a design with every kind of port, a diamond, and faults on demand ---------------------------------------------

# (AXI bits, element type, lanes, elements, NumPy container)
PORTS: list[tuple[int, str, int, int, type[np.integer[Any]]]] = [
    (64, "ap_int<16>", 16, 37, np.int16), (64, "ap_int<16>", 4, 16, np.int16), (64, "ap_int<12>", 1, 5, np.int16),
    (64, "ap_int<4>", 4, 13, np.int8), (64, "ap_uint<5>", 3, 20, np.uint8), (64, "ap_int<20>", 7, 11, np.int32),
    (64, "ap_int<40>", 2, 3, np.int64), (32, "ap_uint<8>", 6, 9, np.uint8), (32, "ap_uint<32>", 1, 2, np.uint32),
    (128, "ap_int<12>", 3, 21, np.int16), (256, "ap_int<20>", 16, 24, np.int32), (512, "ap_int<40>", 4, 9, np.int64),
    (512, "ap_int<16>", 16, 16, np.int16), (512, "ap_uint<40>", 5, 5, np.uint64), (64, "ap_int<4>", 8, 8, np.int8),
]  # fmt: skip

DIAMOND = 24  # elements, four a word

DESIGN = (Path(__file__).parent / "hls_design.cpp").read_text()


def design_source() -> str:
    def ports(prefix: str) -> str:
        return ", ".join(f"hls::stream<ap_axiu<{port[0]}, 0, 0, 0> >& {prefix}{i}" for i, port in enumerate(PORTS))

    streams, processes = [], []
    for i, (bits, kind, lanes, count, _) in enumerate(PORTS):
        streams.append(f'hls::stream<vec<{kind}, {lanes}>, 2> a{i}("a{i}"), b{i}("b{i}");')
        shape, to, back = f"{bits}, {kind}, {lanes}, {count}", "axis_to_stream", "stream_to_axis"
        if lanes == count:
            shape, to, back = f"{bits}, {kind}, {count}", "axis_word_to_stream", "stream_to_axis_word"
        processes.append(f"CUVIL_PROCESS(read{i}, cuvil::{to}<{shape}>(in{i}, a{i}))")
        processes.append(f"CUVIL_PROCESS(number{i}, number<{kind}, {lanes}, {count}>(a{i}, b{i}))")
        processes.append(f"CUVIL_PROCESS(write{i}, cuvil::{back}<{shape}>(b{i}, out{i}))")
    text = DESIGN.replace("INPUTS", ports("in")).replace("OUTPUTS", ports("out")).replace("STREAMS", "\n".join(streams))
    text = text.replace("PROCESSES", "\n".join(processes)).replace("DIAMOND_ELEMENTS", str(DIAMOND))
    return text.replace("INPUT_COUNT", str(len(PORTS) + 2))


class Simulation:
    """A built design behind the runner's C ABI."""

    def __init__(self, library: Path) -> None:
        self.library = ctypes.CDLL(str(library))
        self.library.cuvil_sim_set_stalls.argtypes = [ctypes.c_ulong, ctypes.c_int]

    def run(self, inputs: list[Array], outputs: list[Output]) -> list[Array]:
        """inputs: (samples, elements) each; outputs: (elements, dtype) each. Raises RuntimeError."""
        samples = len(inputs[0])
        results: list[Array] = [np.full((samples, count), 77, dtype) for count, dtype in outputs]
        error = ctypes.create_string_buffer(2000)

        def pointers(arrays: list[Array]) -> ctypes.Array[ctypes.c_void_p]:
            return (ctypes.c_void_p * len(arrays))(*[array.ctypes.data for array in arrays])

        def sizes(arrays: list[Array]) -> ctypes.Array[ctypes.c_long]:
            return (ctypes.c_long * len(arrays))(*[array.strides[0] for array in arrays])

        code = self.library.cuvil_sim_run(
            pointers(inputs), pointers(results), sizes(inputs), sizes(results), ctypes.c_long(samples), error,
            ctypes.c_long(len(error)),
        )  # fmt: skip
        if code:
            raise RuntimeError(error.value.decode())
        return results


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Simulation]:
    built: dict[tuple[str, ...], Simulation] = {}

    def make(*flags: str, bypass: int = 8, xilinx: bool = False) -> Simulation:
        key = (*flags, str(bypass), str(xilinx))
        if key not in built:
            where = tmp_path_factory.mktemp("design")
            common = ["-O1", "-shared", "-fPIC", f"-DBYPASS_DEPTH={bypass}", *flags]
            built[key] = Simulation(
                compiled(where, "design.so", design_source(), [*common, *(xilinx_flags() if xilinx else fast_flags())])
            )
        return built[key]

    return make


def width_of(kind: str) -> tuple[int, bool]:
    return int(kind[kind.index("<") + 1 : -1]), kind.startswith("ap_int")


def case(samples: int, mode: int = 0) -> tuple[list[Array], list[Output], list[Array]]:
    """Inputs, output shapes, and the outputs as NumPy computes them."""
    rng = np.random.default_rng(5)
    inputs: list[Array] = []
    outputs: list[Output] = []
    expected: list[Array] = []
    for _, kind, _, count, dtype in PORTS:
        width, signed = width_of(kind)
        low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)
        x = rng.integers(low, high, (samples, count), np.int64, endpoint=True)
        inputs.append(x.astype(dtype))
        outputs.append((count, dtype))
        expected.append(((x + np.arange(count) - low) % (1 << width) + low).astype(dtype))
    x = rng.integers(-100, 100, (samples, DIAMOND), np.int64)
    inputs += [x.astype(np.int16), np.full((samples, 1), mode, np.int32)]
    outputs += [(DIAMOND, np.int8), (1, np.int32)]
    total = x + x.reshape(samples, -1, 4)[:, ::-1].reshape(samples, DIAMOND)
    expected += [np.clip(total, -128, 127).astype(np.int8), np.full((samples, 1), mode, np.int32)]
    return inputs, outputs, expected


def check(found: list[Array], expected: list[Array]) -> None:
    for index, (a, b) in enumerate(zip(found, expected, strict=True)):
        np.testing.assert_array_equal(a, b, err_msg=f"output {index}")


def test_every_port_shape_round_trips_in_memory_order(build: Callable[..., Simulation]) -> None:
    inputs, outputs, expected = case(500)
    check(build("-DCUVIL_SIM_COUNT").run(inputs, outputs), expected)


def test_the_same_source_gives_the_same_bits_on_xilinx_types(build: Callable[..., Simulation]) -> None:
    inputs, outputs, expected = case(20)
    check(build(xilinx=True).run(inputs, outputs), expected)


def test_spare_high_bits_of_a_container_are_ignored(build: Callable[..., Simulation]) -> None:
    inputs, outputs, expected = case(3)
    inputs[3] = inputs[3] ^ np.int8(0x70)  # ap_int<4> in int8
    check(build("-DCUVIL_SIM_COUNT").run(inputs, outputs), expected)


@pytest.mark.parametrize("percent", [0, 30, 90])
def test_true_depths_and_random_back_pressure_change_nothing(build: Callable[..., Simulation], percent: int) -> None:
    simulation = build("-DCUVIL_SIM_BOUNDED")
    inputs, outputs, expected = case(20)
    for seed in range(3):
        assert simulation.library.cuvil_sim_set_stalls(seed, percent) == 0
        check(simulation.run(inputs, outputs), expected)


def test_stalls_need_the_bounded_mode(build: Callable[..., Simulation]) -> None:
    assert build("-DCUVIL_SIM_COUNT").library.cuvil_sim_set_stalls(1, 10) == 1


def test_a_fifo_too_shallow_is_a_deadlock_that_names_streams_and_sides(build: Callable[..., Simulation]) -> None:
    simulation = build("-DCUVIL_SIM_BOUNDED", bypass=2)
    inputs, outputs, _ = case(2)
    for percent in (0, 50):
        simulation.library.cuvil_sim_set_stalls(1, percent)
        with pytest.raises(RuntimeError) as caught:
            simulation.run(inputs, outputs)
        text = str(caught.value)
        assert text.startswith("sample ")
        assert "deadlock" in text
        assert "'split' waits to write full stream 'bypass' (2 of 2 words)" in text
        assert "'join' waits to read empty stream 'back' (0 of 2 words)" in text
        assert "'reverse' waits to read empty stream 'middle' (0 of 1 words)" in text
        assert "number0" not in text  # finished processes aren't blamed


def test_counters_count_each_clip_once_per_side(build: Callable[..., Simulation]) -> None:
    simulation = build("-DCUVIL_SIM_COUNT")
    inputs, outputs, _ = case(300)
    x = inputs[len(PORTS)].astype(np.int64)
    total = x + x.reshape(300, -1, 4)[:, ::-1].reshape(300, DIAMOND)
    low, high = (ctypes.c_long * 1024)(), (ctypes.c_long * 1024)()
    for threads in (1, 3):
        simulation.library.cuvil_sim_set_threads(threads)
        simulation.run(inputs, outputs)
        assert simulation.library.cuvil_sim_counters(low, high, 1024) == 1024
        assert (low[3], high[3]) == ((total < -128).sum(), (total > 127).sum())
        assert min(low[3], high[3]) > 0
        assert (sum(low), sum(high)) == (low[3], high[3])
    assert build("-DCUVIL_SIM_BOUNDED").library.cuvil_sim_counters(low, high, 1024) == 0


def test_a_read_of_an_empty_stream_names_the_stream(build: Callable[..., Simulation]) -> None:
    inputs, outputs, _ = case(3, mode=0)
    inputs[-1][2] = 1
    with pytest.raises(RuntimeError, match="sample 2: stream 'mode' is read while empty"):
        build("-DCUVIL_SIM_COUNT").run(inputs, outputs)
    with pytest.raises(RuntimeError, match=r"sample 2: deadlock.*'fault' waits to read empty stream 'mode'"):
        build("-DCUVIL_SIM_BOUNDED").run(inputs, outputs)


def test_unread_words_are_an_error_and_the_next_run_is_clean(build: Callable[..., Simulation]) -> None:
    simulation = build("-DCUVIL_SIM_COUNT")
    inputs, outputs, _ = case(3, mode=2)
    with pytest.raises(RuntimeError, match="sample 0: stream 'echoed' ends with 1 unread word"):
        simulation.run(inputs, outputs)
    inputs, outputs, expected = case(200)
    check(simulation.run(inputs, outputs), expected)


def test_a_design_that_reads_too_little_of_an_input_is_an_error(build: Callable[..., Simulation]) -> None:
    inputs, outputs, _ = case(3)
    inputs[-1] = np.zeros((3, 3), np.int32)  # two words where the design reads one
    with pytest.raises(RuntimeError, match=f"input {len(PORTS) + 1} has 1 word"):
        build("-DCUVIL_SIM_COUNT").run(inputs, outputs)


# ---- what must not compile -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("ap_int<32> a = 1; ap_uint<32> b = 1; return a < b;", "compares these as unsigned"),
        ("ap_int<64> a = 1; return (a * a + a * a).to_int();", "no integers beyond 128 bits"),
        ("ap_axiu<64, 1, 0, 0> w; return w.last;", "models ap_axiu<BITS, 0, 0, 0> only"),
        ("hls::stream<cuvil::vec<ap_int<40>, 1> > s; hls::stream<ap_axiu<32, 0, 0, 0> > p;"
         "cuvil::axis_to_stream<32, ap_int<40>, 1, 1>(p, s); return 0;", "must fit in one AXI4-Stream word"),
    ],
)  # fmt: skip
def test_what_hardware_would_do_otherwise_does_not_compile(tmp_path: Path, body: str, reason: str) -> None:
    path = tmp_path / "refused.cpp"
    path.write_text(f"#include <cuvil_hls.h>\nint main() {{ {body} }}\n")
    done = subprocess.run(
        ["g++", "-std=c++14", "-fsyntax-only", *fast_flags(), str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert reason in done.stderr
