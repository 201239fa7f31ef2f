// Simulation of the AXI4-Stream word ap_axiu<BITS, 0, 0, 0> of Vitis HLS: no user, id or dest side channel.
#ifndef CUVIL_SIM_AP_AXI_SDATA_H
#define CUVIL_SIM_AP_AXI_SDATA_H

#include <ap_int.h>

#include <type_traits>

namespace cuvil_ap {

// A word of more than 64 bits: parts of it, none across a multiple of 64 bits, are read and written by `range`.
template <int BITS> class wide_word {
    std::uint64_t lanes_[BITS / 64];

    static constexpr std::uint64_t mask(int bits) { return ~std::uint64_t(0) >> (64 - bits); }

  public:
    struct Part {
        std::uint64_t& lane;
        int shift, bits;
        Part& operator=(std::uint64_t x) {
            lane = (lane & ~(mask(bits) << shift)) | ((x & mask(bits)) << shift);
            return *this;
        }
        operator ap_uint<64>() const { return lane >> shift & mask(bits); }
        std::uint64_t to_uint64() const { return lane >> shift & mask(bits); }
    };
    wide_word() = default;
    wide_word(int x) : lanes_{static_cast<std::uint64_t>(x)} {}
    Part range(int high, int low) { return Part{lanes_[low / 64], low % 64, high - low + 1}; }
    ap_uint<64> range(int high, int low) const { return lanes_[low / 64] >> low % 64 & mask(high - low + 1); }
};

}  // namespace cuvil_ap

template <int BITS, int USER, int ID, int DEST> struct ap_axiu {
    static_assert(USER == 0 && ID == 0 && DEST == 0, "the simulator models ap_axiu<BITS, 0, 0, 0> only");
    static_assert(BITS >= 8 && BITS <= 512 && (BITS & (BITS - 1)) == 0, "the simulator models stream words of 8..512 bits");
    typename std::conditional<(BITS > 64), cuvil_ap::wide_word<BITS>, ap_uint<BITS> >::type data;
    ap_uint<BITS / 8> keep;
    ap_uint<BITS / 8> strb;
    ap_uint<1> last;
};

#endif
