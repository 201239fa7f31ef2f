// Simulation of the AXI4-Stream word ap_axiu<BITS, 0, 0, 0> of Vitis HLS: no user, id or dest side channel.
#ifndef CUVIL_SIM_AP_AXI_SDATA_H
#define CUVIL_SIM_AP_AXI_SDATA_H

#include <ap_int.h>

template <int BITS, int USER, int ID, int DEST> struct ap_axiu {
    static_assert(USER == 0 && ID == 0 && DEST == 0, "the simulator models ap_axiu<BITS, 0, 0, 0> only");
    static_assert(BITS == 8 || BITS == 16 || BITS == 32 || BITS == 64, "the simulator models stream words of 8..64 bits");
    ap_uint<BITS> data;
    ap_uint<BITS / 8> keep;
    ap_uint<BITS / 8> strb;
    ap_uint<1> last;
};

#endif
