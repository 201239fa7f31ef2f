# Vitis HLS: C simulation against golden vectors, synthesis, export as an IP core. build.py starts it with the tool that is
# there; by hand:
#   vitis_hls -f run_hls.tcl                          (2020.2 to 2024.1)
#   vitis-run --mode hls --tcl run_hls.tcl            (from 2023.2 on)
# With CUVIL_COSIM=1 in the environment the synthesised Verilog is simulated too: minutes to hours.
open_project -reset $project
set_top $top
add_files src/$project.cpp -cflags "-std=c++14 -Isrc"
add_files -tb tb/testbench.cpp -cflags "-std=c++14 -Isrc"
add_files -tb tb/golden.txt
open_solution -reset solution1 -flow_target vivado
set_part $part
create_clock -period $clock_ns -name default
csim_design
csynth_design
if {[info exists ::env(CUVIL_COSIM)] && $$::env(CUVIL_COSIM) ne "0"} {
    cosim_design -rtl verilog
}
export_design -format ip_catalog -display_name "$project"
exit
