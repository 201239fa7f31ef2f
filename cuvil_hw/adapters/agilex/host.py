"""The host program of a SYCL design, its makefile and the data that checks it.

The program includes the design's source: with it, one call of the compiler makes an executable for the emulator or the
card. It needs memory on the device (USM device allocations), which every board support package of oneAPI has.
"""

from __future__ import annotations

from collections.abc import Sequence

from cuvil_hw import dtypes
from cuvil_hw.adapters.base import Golden
from cuvil_hw.adapters.streaming.project.project import TOP
from cuvil_hw.contract.record import port_bytes
from cuvil_hw.errors import CuvilError
from cuvil_hw.errors.quoting import make, shell
from cuvil_hw.schedule.kernel import KernelGraph

MAIN = "host/main.cpp"
COMPILER = "icpx"

_PROGRAM = """// Runs the design on files: samples one behind the other, little-endian, in the order in which ports
// stream them (channels last). Arguments: a file for each input, then one to be written for each output.
#include <cstddef>
#include <exception>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "../src/{project}.sycl.cpp"

namespace cuvil_host {{

// Bytes of one sample of each port.
const std::vector<std::size_t> inputs = {{{inputs}}}, outputs = {{{outputs}}};
// Samples of one call: the design counts elements with 32 bits.
const std::size_t most = {most};

// Memory of the device, as whatever the design has there.
struct Memory {{
  unsigned char *at;
  template <class T> operator T *() const {{ return reinterpret_cast<T *>(at); }}
}};

std::vector<char> read(const char *path, std::size_t bytes) {{
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> data{{std::istreambuf_iterator<char>(file), {{}}}};
  if (!file) throw std::runtime_error(std::string(path) + " can't be read");
  if (data.size() % bytes)
    throw std::runtime_error(std::string(path) + " doesn't hold whole samples of " + std::to_string(bytes) + " bytes");
  return data;
}}

void run(char **paths) {{
#ifdef FPGA_EMULATOR
  sycl::queue queue{{sycl::ext::intel::fpga_emulator_selector_v}};
#else
  sycl::queue queue{{sycl::ext::intel::fpga_selector_v}};
#endif
  std::vector<std::vector<char>> data;
  for (std::size_t n = 0; n < inputs.size(); ++n) {{
    data.push_back(read(paths[n], inputs[n]));
    if (data[n].size() / inputs[n] != data[0].size() / inputs[0])
      throw std::runtime_error(std::string(paths[n]) + " doesn't hold as many samples as " + paths[0]);
  }}
  const std::size_t samples = data.empty() ? 0 : data[0].size() / inputs[0];
  for (const std::size_t bytes : outputs) data.emplace_back(bytes * samples);
  std::vector<std::size_t> sizes = inputs;
  sizes.insert(sizes.end(), outputs.begin(), outputs.end());
  std::vector<Memory> ports;
  for (const std::size_t bytes : sizes) {{
    ports.push_back({{sycl::malloc_device<unsigned char>(bytes * most, queue)}});
    if (ports.back().at == nullptr) throw std::runtime_error("the device has no memory for a port");
  }}
  for (std::size_t first = 0; first < samples; first += most) {{
    const std::size_t count = samples - first < most ? samples - first : most;
    for (std::size_t n = 0; n < inputs.size(); ++n)
      queue.memcpy(ports[n].at, data[n].data() + first * sizes[n], count * sizes[n]);
    queue.wait();
    {top}(queue, static_cast<int>(count), {arguments});
    for (std::size_t n = inputs.size(); n < sizes.size(); ++n)
      queue.memcpy(data[n].data() + first * sizes[n], ports[n].at, count * sizes[n]);
    queue.wait();
  }}
  for (const Memory &port : ports) sycl::free(port.at, queue);
  for (std::size_t n = inputs.size(); n < sizes.size(); ++n) {{
    std::ofstream file(paths[n], std::ios::binary);
    file.write(data[n].data(), static_cast<std::streamsize>(data[n].size()));
    if (!file.flush()) throw std::runtime_error(std::string(paths[n]) + " can't be written");
  }}
}}

}}  // namespace cuvil_host

int main(int count, char **arguments) {{
  const std::size_t files = cuvil_host::inputs.size() + cuvil_host::outputs.size();
  if (static_cast<std::size_t>(count) != files + 1) {{
    std::cerr << "usage: " << arguments[0] << " {usage}\\n";
    return 2;
  }}
  try {{
    cuvil_host::run(arguments + 1);
  }} catch (const std::exception &problem) {{
    std::cerr << arguments[0] << ": " << problem.what() << "\\n";
    return 1;
  }}
  return 0;
}}
"""

_MAKEFILE = """# make emulator: for Intel's FPGA emulator
# make check:    run it on the golden data
# make report:   the compiler's estimate of the design
# make hardware: the bitstream, in hours
# All need icpx of oneAPI 2025.0, the last release with FPGA support.
CXX := {compiler}
TARGET := {target}
FLAGS := {flags}

emulator: {name}.fpga_emu
report: {name}_report.a
hardware: {name}.fpga

{name}.fpga_emu: {main} {source}
\t$(CXX) $(FLAGS) -DFPGA_EMULATOR $< -o $@

{name}_report.a: {main} {source}
\t$(CXX) $(FLAGS) -fsycl-link=early -Xshardware -Xstarget=$(TARGET) $< -o $@

{name}.fpga: {main} {source}
\t$(CXX) $(FLAGS) -Xshardware -Xstarget=$(TARGET) $< -o $@

check: {name}.fpga_emu
\t./$< {golden_inputs} {made}
{compare}

clean:
\trm -f {name}.fpga_emu {name}_report.a {name}.fpga {made}

.PHONY: emulator report hardware check clean
"""


def host_files(graph: KernelGraph, project: str, part: str, flags: Sequence[str], golden: Golden) -> dict[str, bytes]:
    """`flags`: of every call of the compiler; `golden`: as its arrays cross their ports. Raises CuvilError for a port
    without elements, by whose files samples
    can't be counted."""
    inputs, outputs = graph.ports()
    for port in (*inputs, *outputs):
        if port_bytes(port) == 0:
            raise CuvilError(
                f"{project}: port {port.name} of shape {list(port.shape)} has no elements, so that its files don't say "
                "how many samples there are; leave it out of the model"
            )
    sizes = [port_bytes(p) for p in (*inputs, *outputs)]
    program = _PROGRAM.format(
        project=project,
        inputs=", ".join(map(str, sizes[: len(inputs)])),
        outputs=", ".join(map(str, sizes[len(inputs) :])),
        most=max(1, min(1 << 16, (1 << 30) // max(sizes))),
        top=TOP,
        arguments=", ".join(f"ports[{n}]" for n in range(len(sizes))),
        usage=" ".join(f"{way}{n}.bin" for way, ends in (("in", inputs), ("out", outputs)) for n in range(len(ends))),
    )
    made = [f"out{n}.bin" for n in range(len(outputs))]
    exact = [n for n, port in enumerate(outputs) if not dtypes.is_float(port.dtype)]
    makefile = _MAKEFILE.format(
        compiler=COMPILER,
        target=make(shell(part)),
        flags=" ".join(flags),
        name=project,
        main=MAIN,
        source=f"src/{project}.sycl.cpp",
        golden_inputs=" ".join(f"golden/in{n}.bin" for n in range(len(inputs))),
        made=" ".join(made),
        # Floats may differ in their last places.
        compare="\n".join(f"\tcmp out{n}.bin golden/out{n}.bin" for n in exact) or "\t@echo the outputs are floats",
    )
    files = {MAIN: program.encode(), "Makefile": makefile.encode()}
    for way, arrays in (("in", golden.inputs), ("out", golden.outputs)):
        for n, array in enumerate(arrays):
            files[f"golden/{way}{n}.bin"] = array.tobytes()
    return files
