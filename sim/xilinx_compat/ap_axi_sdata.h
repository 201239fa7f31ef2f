// AXI4-Stream word for the ap_types of Xilinx as the hls4ml wheel carries them: that copy has no ap_axi_sdata.h.
#ifndef CUVIL_XILINX_COMPAT_AP_AXI_SDATA_H
#define CUVIL_XILINX_COMPAT_AP_AXI_SDATA_H

#include <ap_int.h>

template <int BITS, int USER, int ID, int DEST> struct ap_axiu {
    static_assert(USER == 0 && ID == 0 && DEST == 0, "the simulator models ap_axiu<BITS, 0, 0, 0> only");
    static_assert(BITS >= 8 && BITS <= 512 && (BITS & (BITS - 1)) == 0, "the simulator models stream words of 8..512 bits");
    ap_uint<BITS> data;
    ap_uint<BITS / 8> keep;
    ap_uint<BITS / 8> strb;
    ap_uint<1> last;
};

#endif
