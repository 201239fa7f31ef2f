# Vivado 2020.2 or later: the SystemVerilog as an IP core in ip/, which shell.tcl takes, and any block design can.
#   vivado -mode batch -source ip.tcl
source design.tcl

file delete -force ip build_ip
create_project -force core build_ip -part $part
add_files [concat [glob rtl/*.sv] [glob rtl/*.v] [glob -nocomplain rtl/*.hex]]
set_property file_type SystemVerilog [get_files *.sv]
# Contents of tables: $readmemh finds them beside the sources.
foreach table [get_files -quiet *.hex] {
    set_property file_type {Memory File} $table
}
set_property top ${top}_core [current_fileset]
update_compile_order -fileset sources_1
ipx::package_project -root_dir ip -vendor cuvil -library rtl -taxonomy /UserIP -import_files -force
set core [ipx::current_core]
set_property name $top $core
set_property version 1.0 $core
set_property display_name $project $core
ipx::create_xgui_files $core
ipx::update_checksums $core
ipx::check_integrity $core
ipx::save_core $core
close_project
exit
