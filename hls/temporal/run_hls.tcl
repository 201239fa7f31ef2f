# Vitis HLS: synthesis, export as an IP core.
#   vitis_hls -f run_hls.tcl                          (up to 2024.1)
#   vitis-run --mode hls --tcl run_hls.tcl            (from 2023.2 on)
open_project -reset $project
set_top $top
add_files src/$project.cpp -cflags "-std=c++14 -Isrc"
open_solution -reset solution1 -flow_target vivado
set_part $part
create_clock -period $clock_ns -name default
csynth_design
export_design -format ip_catalog -display_name "$project"
exit
