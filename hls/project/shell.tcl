# Vivado: the block design around the exported core, and its bitstream. Run build.py (or ip.tcl, where that is) first.
#   vivado -mode batch -source shell.tcl              makes shell.bit and shell.hwh in this folder
# Each port of the core has an AXI DMA in simple mode. The core takes the next sample as soon as it can: ap_start of an HLS core
# is tied to one, one of SystemVerilog runs from reset on, and has registers behind those of the DMAs.
source design.tcl

if {$processor eq ""} {
    error "$part: this script knows Zynq-7000 and Zynq UltraScale+; build the block design by hand for other families"
}
create_project -force shell build -part $part
if {$board ne "" && [llength [get_board_parts -quiet $board]]} {
    set_property board_part $board [current_project]
}
if {$flow eq "rtl"} {
    set places {ip}
    set vlnv cuvil:rtl:$top
    set first ip.tcl
} else {
    set places [list $project/solution1/impl/ip hls_component/hls/impl/ip]
    set vlnv xilinx.com:hls:$top
    set first build.py
}
set cores [glob -nocomplain {*}$places]
if {![llength $cores]} {
    error "no exported core in [join $places { or }]: run $first first"
}
set_property ip_repo_paths [lindex $cores 0] [current_project]
update_ip_catalog
create_bd_design shell

# Processor, with the board's own settings of memory and pins where Vivado knows the board
set ps [create_bd_cell -type ip -vlnv xilinx.com:ip:$processor ${processor}_0]
apply_bd_automation -rule xilinx.com:bd_rule:$processor -config {apply_board_preset 1} $ps
if {$processor eq "processing_system7"} {
    set_property -dict [list CONFIG.PCW_USE_M_AXI_GP0 1 CONFIG.PCW_USE_S_AXI_HP0 1 \
        CONFIG.PCW_S_AXI_HP0_DATA_WIDTH 64 CONFIG.PCW_FPGA0_PERIPHERAL_FREQMHZ $clock_mhz] $ps
    set clock ${processor}_0/FCLK_CLK0
    set reset ${processor}_0/FCLK_RESET0_N
    set axi_clocks {M_AXI_GP0_ACLK S_AXI_HP0_ACLK}
} else {
    set_property -dict [list CONFIG.PSU__USE__M_AXI_GP0 1 CONFIG.PSU__USE__M_AXI_GP1 0 CONFIG.PSU__USE__M_AXI_GP2 0 \
        CONFIG.PSU__USE__S_AXI_GP2 1 CONFIG.PSU__CRL_APB__PL0_REF_CTRL__FREQMHZ $clock_mhz] $ps
    set clock ${processor}_0/pl_clk0
    set reset ${processor}_0/pl_resetn0
    set axi_clocks {maxihpm0_fpd_aclk saxihp0_fpd_aclk}
}
create_bd_cell -type ip -vlnv xilinx.com:ip:proc_sys_reset resets
connect_bd_net [get_bd_pins $clock] [get_bd_pins resets/slowest_sync_clk]
connect_bd_net [get_bd_pins $reset] [get_bd_pins resets/ext_reset_in]

# Core, always started
create_bd_cell -type ip -vlnv $vlnv accel
if {$flow ne "rtl"} {
    create_bd_cell -type ip -vlnv xilinx.com:ip:xlconstant one
    connect_bd_net [get_bd_pins one/dout] [get_bd_pins accel/ap_start]
}
connect_bd_net [get_bd_pins $clock] [get_bd_pins accel/ap_clk]
connect_bd_net [get_bd_pins resets/peripheral_aresetn] [get_bd_pins accel/ap_rst_n]

# One DMA a port; registers behind one interconnect, memory behind another
set count [llength $stream_ports]
set cell [create_bd_cell -type ip -vlnv xilinx.com:ip:smartconnect registers]
set_property -dict [list CONFIG.NUM_SI 1 CONFIG.NUM_MI [expr {$count + ($flow eq "rtl")}]] $cell
if {$flow eq "rtl"} {
    connect_bd_intf_net [get_bd_intf_pins registers/M[format %02d $count]_AXI] [get_bd_intf_pins accel/s_axi_control]
}
set cell [create_bd_cell -type ip -vlnv xilinx.com:ip:smartconnect ddr]
set_property -dict [list CONFIG.NUM_SI $count CONFIG.NUM_MI 1] $cell
connect_bd_intf_net [get_bd_intf_pins ${processor}_0/$control] [get_bd_intf_pins registers/S00_AXI]
connect_bd_intf_net [get_bd_intf_pins ddr/M00_AXI] [get_bd_intf_pins ${processor}_0/$memory]
set clocked [list registers/aclk ddr/aclk]
set held [list registers/aresetn ddr/aresetn]
foreach pin $axi_clocks {
    lappend clocked ${processor}_0/$pin
}
set n 0
foreach row $stream_ports {
    lassign $row port direction dma base
    set sends [expr {$direction eq "in"}]
    set cell [create_bd_cell -type ip -vlnv xilinx.com:ip:axi_dma $dma]
    set side [expr {$sends ? "mm2s" : "s2mm"}]
    set stream [expr {$sends ? "c_m_axis_mm2s_tdata_width" : "c_s_axis_s2mm_tdata_width"}]
    set_property -dict [list CONFIG.c_include_sg 0 CONFIG.c_micro_dma 0 CONFIG.c_sg_length_width $length_bits \
        CONFIG.c_addr_width $address_bits CONFIG.c_include_mm2s $sends \
        CONFIG.c_include_s2mm [expr {!$sends}] CONFIG.c_m_axi_${side}_data_width [expr {$bits < 32 ? 32 : $bits}] \
        ] $cell
    # The width of a received stream follows from what is connected to it.
    if {$sends} {
        set_property CONFIG.$stream $bits $cell
    }
    # Vitis HLS appends _r to names that Verilog reserves.
    set pin [get_bd_intf_pins -quiet accel/$port]
    if {$pin eq ""} {
        set pin [get_bd_intf_pins accel/${port}_r]
    }
    if {$sends} {
        connect_bd_intf_net [get_bd_intf_pins $dma/M_AXIS_MM2S] $pin
    } else {
        connect_bd_intf_net $pin [get_bd_intf_pins $dma/S_AXIS_S2MM]
    }
    set index [format %02d $n]
    connect_bd_intf_net [get_bd_intf_pins registers/M${index}_AXI] [get_bd_intf_pins $dma/S_AXI_LITE]
    connect_bd_intf_net [get_bd_intf_pins $dma/M_AXI_[string toupper $side]] \
        [get_bd_intf_pins ddr/S${index}_AXI]
    lappend clocked $dma/s_axi_lite_aclk $dma/m_axi_${side}_aclk
    lappend held $dma/axi_resetn
    incr n
}
foreach pin $clocked {
    connect_bd_net [get_bd_pins $clock] [get_bd_pins $pin]
}
foreach pin $held {
    connect_bd_net [get_bd_pins resets/peripheral_aresetn] [get_bd_pins $pin]
}
foreach row $stream_ports {
    lassign $row port direction dma base
    assign_bd_address -offset $base -range 64K [get_bd_addr_segs $dma/S_AXI_LITE/Reg]
}
if {$flow eq "rtl"} {
    assign_bd_address -offset $core_base -range 64K [get_bd_addr_segs accel/s_axi_control/*]
}
assign_bd_address
validate_bd_design
save_bd_design

# Bitstream; the user ID ties it to this design
set constraints [open build/user_id.xdc w]
puts $constraints "set_property BITSTREAM.CONFIG.USERID 32'h$user_id \[current_design\]"
close $constraints
add_files -fileset constrs_1 build/user_id.xdc
set wrapper [make_wrapper -files [get_files shell.bd] -top]
add_files -norecurse $wrapper
set_property top shell_wrapper [current_fileset]
launch_runs impl_1 -to_step write_bitstream -jobs 2
wait_on_run impl_1
if {[get_property PROGRESS [get_runs impl_1]] ne "100%"} {
    error "implementation failed; see build/shell.runs/impl_1/runme.log"
}
open_run impl_1
report_utilization -file utilization.txt
report_timing_summary -file timing.txt
if {[get_property STATS.WNS [get_runs impl_1]] < 0} {
    error "timing isn't met at $clock_mhz MHz (see timing.txt); lower clock_mhz in the target's profile and compile again"
}
file copy -force build/shell.runs/impl_1/shell_wrapper.bit shell.bit
file copy -force [lindex [glob build/shell.gen/sources_1/bd/shell/hw_handoff/shell.hwh] 0] shell.hwh
exit
