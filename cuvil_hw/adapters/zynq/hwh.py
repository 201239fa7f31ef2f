"""Hardware handoff files (.hwh): what Vivado says that a block design holds, read and checked against a design.

pynq checks how a .hwh is connected. Addresses, widths, parts and DMA settings are checked here, before anything is
programmed. Every problem names the instance that has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from xml.etree import ElementTree

from cuvil_hw.adapters.zynq.ports import StreamPort
from cuvil_hw.errors import DeviceError

PROCESSORS = ("processing_system7", "zynq_ultra_ps_e")
_MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Bus:
    """A bus interface of an instance. `bus`: the name that both ends of a connection share; `bits`: data width of a
    stream, 0 where the file doesn't say."""

    name: str
    kind: str  # "axis", "aximm", …
    drives: bool
    bus: str
    bits: int


@dataclass(frozen=True, slots=True)
class Clock:
    """Fabric clock `index` of the processor, and its frequency that the design was built for."""

    index: int
    hz: float


@dataclass(frozen=True, slots=True)
class Instance:
    """One block. `path`: its name with hierarchy, as pynq shows it; `clock`: of an HLS core, where it is one of the
    processor's and the file gives its frequency."""

    name: str
    path: str
    kind: str
    parameters: Mapping[str, str]
    buses: tuple[Bus, ...]
    registers: frozenset[str]
    clock: Clock | None = None
    offsets: Mapping[str, int] = field(default_factory=dict)  # bytes of registers, where the file says them

    def number(self, parameter: str, default: int) -> int:
        """A whole-numbered parameter, whatever the case of its name. Raises DeviceError when it is no number."""
        found = {k.lower(): v for k, v in self.parameters.items()}.get(parameter)
        if found is None:
            return default
        try:
            return int(found, 0)
        except ValueError:
            raise DeviceError(f"{self.path}: parameter {parameter} is {found!r}, not a whole number") from None


@dataclass(frozen=True, slots=True)
class Region:
    """An address range [base, high] that `master` reaches `instance` by, through `interface` of the master."""

    master: str
    interface: str
    instance: str
    kind: str  # "REGISTER" | "MEMORY"
    base: int
    high: int


@dataclass(frozen=True, slots=True)
class Hardware:
    """A whole block design. `part`: device, package and speed grade joined, in lower case without dashes; `tool`: the
    Vivado version that wrote it."""

    name: str
    part: str
    tool: str
    instances: Mapping[str, Instance]
    regions: tuple[Region, ...]


@dataclass(frozen=True, slots=True)
class Channel:
    """The DMA channel of one port. `reach`: lowest and highest byte address that it can use; `align`: of a buffer's
    address, in bytes; `most_bytes`: of one transfer."""

    port: StreamPort
    dma: str
    base: int
    reach: tuple[int, int]
    align: int
    most_bytes: int


@dataclass(frozen=True, slots=True)
class Wiring:
    """How a block design carries a design: a channel per port, and the core that computes. `started_by_register`: the
    core waits for AP_START in its control register; else the block design keeps it running."""

    inputs: tuple[Channel, ...]
    outputs: tuple[Channel, ...]
    core: str
    started_by_register: bool
    clock: Clock | None


def read(data: bytes, origin: str = "the .hwh") -> Hardware:
    """The design in a .hwh. Raises DeviceError when it is malformed."""
    if len(data) > _MOST_BYTES or b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise DeviceError(f"{origin}: larger than {_MOST_BYTES} bytes, or declares a document type; refused")
    try:
        root = ElementTree.fromstring(data)
        modules = [_instance(m) for m in root.iter("MODULE")]
        regions = [r for m in root.iter("MODULE") for r in _regions(m)]
        system = root.find("SYSTEMINFO")
        if root.tag != "EDKSYSTEM" or system is None:
            raise ValueError("it has no EDKSYSTEM with a SYSTEMINFO")
    except (ElementTree.ParseError, ValueError, KeyError) as e:
        raise DeviceError(f"{origin}: not a hardware handoff file: {e}; export it from Vivado again") from e
    instances = {m.name: m for m in modules}
    if len(instances) != len(modules):
        raise DeviceError(f"{origin}: an instance name is given twice; export it from Vivado again")
    part = short_part("".join(system.get(key, "") for key in ("DEVICE", "PACKAGE", "SPEEDGRADE")))
    tool = f"Vivado {root.get('VIVADOVERSION', 'of unknown version')}"
    return Hardware(system.get("NAME", ""), part, tool, instances, tuple(regions))


def short_part(part: str) -> str:
    """Turns "xc7z020clg400-1" into "7z020clg4001": spellings differ between Vivado's files."""
    return re.sub(r"[^a-z0-9]", "", part.lower().removeprefix("xc"))


def _instance(module: ElementTree.Element) -> Instance:
    own = module.find("PARAMETERS")
    registers = {r.attrib["NAME"] for r in module.iter("REGISTER")}
    fields = {f"{r.attrib['NAME']}.{f.attrib['NAME']}" for r in module.iter("REGISTER") for f in r.iter("FIELD")}
    return Instance(
        name=module.attrib["INSTANCE"],
        path=module.get("FULLNAME", module.attrib["INSTANCE"]).lstrip("/"),
        kind=module.get("MODTYPE", ""),
        parameters={} if own is None else {p.attrib["NAME"]: p.get("VALUE", "") for p in own.iter("PARAMETER")},
        buses=tuple(_bus(b) for b in module.iter("BUSINTERFACE")),
        registers=frozenset(registers | fields),
        clock=_clock(module),
        offsets={r.attrib["NAME"]: at for r in module.iter("REGISTER") if (at := _offset(r)) is not None},
    )


def _offset(register: ElementTree.Element) -> int | None:
    found = next((p.get("VALUE", "") for p in register.iter("PROPERTY") if p.get("NAME") == "ADDRESS_OFFSET"), "")
    return int(found, 0) if found else None


def _clock(module: ElementTree.Element) -> Clock | None:
    for port in module.iter("PORT"):
        source = re.search(r"_(?:FCLK_CLK|pl_clk)([0-3])$", port.get("SIGNAME", ""))
        if port.get("NAME") == "ap_clk" and source and (hz := float(port.get("CLKFREQUENCY", 0))) > 0:
            return Clock(int(source[1]), hz)
    return None


def _bus(bus: ElementTree.Element) -> Bus:
    parts = bus.get("VLNV", "").split(":")
    size = next((p.get("VALUE", "0") for p in bus.iter("PARAMETER") if p.get("NAME") == "TDATA_NUM_BYTES"), "0")
    drives = bus.get("TYPE") in ("MASTER", "INITIATOR")
    kind = parts[2] if len(parts) > 2 else ""
    return Bus(bus.attrib["NAME"], kind, drives, bus.get("BUSNAME", ""), 8 * int(size))


def _regions(module: ElementTree.Element) -> list[Region]:
    return [
        Region(
            module.attrib["INSTANCE"],
            r.get("MASTERBUSINTERFACE", ""),
            r.attrib["INSTANCE"],
            r.get("MEMTYPE", ""),
            int(r.attrib["BASEVALUE"], 16),
            int(r.attrib["HIGHVALUE"], 16),
        )
        for r in module.iter("MEMRANGE")
    ]


def wire(
    hardware: Hardware, inputs: Sequence[StreamPort], outputs: Sequence[StreamPort], part: str, origin: str = "the .hwh"
) -> Wiring:
    """How `hardware` carries a design with these ports on `part`. Raises DeviceError with every problem there is."""
    problems = [*_part_problems(hardware, part), *_address_problems(hardware)]
    cores = [i for i in hardware.instances.values() if all(_port_bus(i, p) for p in (*inputs, *outputs))]
    if len(cores) != 1:
        named = ", ".join(p.name for p in (*inputs, *outputs))
        found = ", ".join(sorted(i.path for i in cores)) or "none"
        problems.append(f"one instance must have the stream ports {named} of the design; there is {found}")
        raise _failed(origin, problems)
    channels: dict[str, list[Channel]] = {"in": [], "out": []}
    for port in (*inputs, *outputs):
        try:
            channels[port.direction].append(_channel(hardware, cores[0], port))
        except DeviceError as e:
            problems.append(str(e))
    every = [*channels["in"], *channels["out"]]
    for a, b in combinations(every, 2):
        if (a.dma, a.port.direction) == (b.dma, b.port.direction):
            problems.append(f"{a.dma}: serves both {a.port.name} and {b.port.name}; each port needs a channel")
    if problems:
        raise _failed(origin, problems)
    registers = cores[0].registers
    started = "CTRL.AP_START" in registers or "AP_CTRL.AP_START" in registers
    return Wiring(tuple(channels["in"]), tuple(channels["out"]), cores[0].path, started, cores[0].clock)


@dataclass(frozen=True, slots=True)
class MasterWiring:
    """How a block design carries a core that reads and writes memory itself. `base`: of its registers; `addresses`: for
    each AXI master the offsets of the words of the register that takes its address; `reach`: lowest and highest byte
    that all masters reach."""

    core: str
    base: int
    addresses: Mapping[str, tuple[int, ...]]
    reach: tuple[int, int]
    clock: Clock | None


def wire_masters(hardware: Hardware, masters: Sequence[str], part: str, origin: str = "the .hwh") -> MasterWiring:
    """How `hardware` carries a core with these AXI masters on `part`. Raises DeviceError with all problems."""
    problems = [*_part_problems(hardware, part), *_address_problems(hardware)]
    cores = [i for i in hardware.instances.values() if all(_address_words(i, m) for m in masters)]
    if len(cores) != 1:
        found = ", ".join(sorted(i.path for i in cores)) or "none"
        problems.append(f"one instance must have address registers for {', '.join(masters)}; there is {found}")
        raise _failed(origin, problems)
    core = cores[0]
    registers = [r for r in hardware.regions if r.instance == core.name and r.kind == "REGISTER"]
    if not registers:
        problems.append(f"{core.path}: has no address, so the processor can't reach its registers")
    windows: dict[str, list[Region]] = {}
    for r in hardware.regions:
        if (r.master, r.kind) == (core.name, "MEMORY"):
            windows.setdefault(r.interface, []).append(r)
    for bus in core.buses:
        if bus.kind == "aximm" and bus.drives and bus.name not in windows:
            problems.append(f"{core.path}: {bus.name} reaches no memory; assign its address in the block design")
    if not windows:
        problems.append(f"{core.path}: none of its masters reaches memory")
    if problems:
        raise _failed(origin, problems)
    low = max(min(r.base for r in found) for found in windows.values())
    high = min(max(r.high for r in found) for found in windows.values())
    addresses = {m: _address_words(core, m) for m in masters}
    return MasterWiring(core.path, registers[0].base, addresses, (low, high), core.clock)


def _address_words(core: Instance, master: str) -> tuple[int, ...]:
    """Offsets of the register that takes a master's address: of one word, or of two with "_1" and "_2" behind the name
    (addresses of 64 bits). Names that Verilog reserves get "_r" from Vitis HLS."""
    for name in (master, f"{master}_r"):
        if name in core.offsets:
            return (core.offsets[name],)
        if f"{name}_1" in core.offsets and f"{name}_2" in core.offsets:
            return core.offsets[f"{name}_1"], core.offsets[f"{name}_2"]
    return ()


def _failed(origin: str, problems: Sequence[str]) -> DeviceError:
    listed = "".join(f"\n  - {p}" for p in problems)
    return DeviceError(f"{origin} doesn't fit the design; build the block design with the project's shell.tcl{listed}")


def _part_problems(hardware: Hardware, part: str) -> list[str]:
    processors = [i for i in hardware.instances.values() if i.kind in PROCESSORS]
    problems = []
    if len(processors) != 1:
        problems.append(f"one processor ({' or '.join(PROCESSORS)}) is needed, there are {len(processors)}")
    if not hardware.part or not short_part(part).startswith(hardware.part):
        where = processors[0].path if processors else hardware.name
        problems.append(f"{where}: is on part {hardware.part or 'unknown'}, the design is for {part}")
    return problems


def _address_problems(hardware: Hardware) -> list[str]:
    def shown(r: Region) -> str:
        return f"{r.base:#x}–{r.high:#x}"

    problems = [
        f"{r.instance}: its address range {shown(r)} (of {r.master}/{r.interface}) ends before it starts"
        for r in hardware.regions
        if r.high < r.base
    ]
    sound = [r for r in hardware.regions if r.high >= r.base]
    for a, b in combinations(sound, 2):
        same_window = a.instance == b.instance and a.kind == b.kind == "MEMORY"
        if (
            (a.master, a.interface) == (b.master, b.interface)
            and not same_window
            and max(a.base, b.base) <= min(a.high, b.high)
        ):
            problems.append(f"{a.instance} at {shown(a)} overlaps {b.instance} at {shown(b)} for {a.master}")
    return problems


def _port_bus(instance: Instance, port: StreamPort) -> Bus | None:
    """The stream of a port. Names that Verilog reserves get "_r" from Vitis HLS; other tools write capitals."""
    for bus in instance.buses:
        named = bus.name.lower() in (port.name.lower(), f"{port.name.lower()}_r")
        if named and bus.kind == "axis" and bus.drives == (port.direction == "out") and instance.kind != "axi_dma":
            return bus
    return None


def _channel(hardware: Hardware, core: Instance, port: StreamPort) -> Channel:
    bus = _port_bus(core, port)
    if bus is None:
        raise DeviceError(f"{core.path}: has no stream {port.name}")
    if bus.bits != port.bits:
        raise DeviceError(f"{core.path}: {bus.name} is {bus.bits} bits wide, the design's streams have {port.bits}")
    side, memory = ("mm2s", "M_AXI_MM2S") if port.direction == "in" else ("s2mm", "M_AXI_S2MM")
    dma = _far_end(hardware, core, bus)
    if dma is None or dma.kind != "axi_dma":
        raise DeviceError(f"{core.path}: {bus.name} leads to {dma.path if dma else 'nothing'}, not to an AXI DMA")
    if dma.number(f"c_include_{side}", 0) != 1:
        raise DeviceError(f"{dma.path}: has no {side.upper()} channel, which port {port.name} needs")
    for mode in ("c_include_sg", "c_micro_dma"):
        if dma.number(mode, 0):
            raise DeviceError(f"{dma.path}: has {mode} set; the driver uses the simple mode, set it to 0")
    stream = "c_m_axis_mm2s_tdata_width" if side == "mm2s" else "c_s_axis_s2mm_tdata_width"
    width = dma.number(stream, 32)
    if width != port.bits:
        raise DeviceError(f"{dma.path}: its {side.upper()} stream is {width} bits wide, {port.name} has {port.bits}")
    most = (1 << dma.number("c_sg_length_width", 14)) - 1
    if port.sample_bytes > most:
        raise DeviceError(f"{dma.path}: moves at most {most} bytes, a sample of {port.name} has {port.sample_bytes}")
    registers = [r for r in hardware.regions if r.instance == dma.name and r.kind == "REGISTER"]
    if not registers:
        raise DeviceError(f"{dma.path}: has no address, so the processor can't reach its registers")
    # The address of memory that no interface of the channel maps is out of its reach whatever its width.
    windows = [r for r in hardware.regions if (r.master, r.interface, r.kind) == (dma.name, memory, "MEMORY")]
    if not windows:
        raise DeviceError(f"{dma.path}: {memory} reaches no memory; assign its address in the block design")
    low = min(r.base for r in windows)
    high = min(max(r.high for r in windows), (1 << dma.number("c_addr_width", 32)) - 1)
    align = dma.number(f"c_m_axi_{side}_data_width", 32) // 8
    return Channel(port, dma.path, registers[0].base, (low, high), align, most)


def _far_end(hardware: Hardware, start: Instance, bus: Bus) -> Instance | None:
    """The instance at the other end of a stream, through blocks with one stream in and one out (registers, FIFOs)."""
    seen = {start.name}
    while True:
        ends = [
            (i, b)
            for i in hardware.instances.values()
            for b in i.buses
            if b.kind == "axis" and b.bus == bus.bus and i.name not in seen
        ]
        if len(ends) != 1:
            return None
        instance, end = ends[0]
        streams = [b for b in instance.buses if b.kind == "axis" and b != end]
        if instance.kind == "axi_dma" or len(streams) != 1:
            return instance
        seen.add(instance.name)
        bus = streams[0]


def for_pynq(data: bytes, clock_hz: float) -> bytes:
    """A .hwh with what pynq needs to load it, where it lacks that: DMA parameters in lower case (else the channels are
    silently missing), and on a Zynq-7000 the frequencies of the four fabric clocks under the name that pynq 4 looks up
    on every device. Clocks of unknown frequency get `clock_hz`. Other content stays."""
    root = ElementTree.fromstring(data)
    for module in root.iter("MODULE"):
        parameters = module.find("PARAMETERS")
        if parameters is None:
            continue
        if module.get("MODTYPE") == "axi_dma":
            for p in parameters.iter("PARAMETER"):
                if p.get("NAME", "").startswith("C_"):
                    p.set("NAME", p.attrib["NAME"].lower())
        if module.get("MODTYPE") == "processing_system7":
            have = {p.get("NAME", ""): p.get("VALUE", "") for p in parameters.iter("PARAMETER")}
            for n in range(4):
                key = f"PSU__CRL_APB__PL{n}_REF_CTRL__ACT_FREQMHZ"
                if key not in have:
                    mhz = have.get(f"PCW_ACT_FPGA{n}_PERIPHERAL_FREQMHZ", f"{clock_hz / 1e6:g}")
                    ElementTree.SubElement(parameters, "PARAMETER", {"NAME": key, "VALUE": mhz})
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text
