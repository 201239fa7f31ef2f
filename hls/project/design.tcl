# What shell.tcl builds: shell $shell around design $project.
set project {$project}
set top {$top}
# What makes the core: hls (build.py) or rtl (ip.tcl), which has registers at core_base.
set flow $flow
set core_base $core_base
set part $part
set board $board
set bits $bits
set clock_mhz $clock_mhz
set processor {$processor}
set control {$control}
set memory {$memory}
set address_bits $address_bits
set length_bits $length_bits
set user_id $user_id
# port, direction as the core sees it, its DMA, base address of the DMA's registers
set stream_ports {
$stream_ports
}
