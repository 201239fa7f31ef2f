// Adds the depth parameter of Vitis (hls::stream<T, DEPTH>) to the older one-parameter hls::stream of the ap_types that the
// hls4ml wheel carries. Put this folder before ap_types on the include path. The depth has no effect here.
#ifndef CUVIL_XILINX_COMPAT_HLS_STREAM_H
#define CUVIL_XILINX_COMPAT_HLS_STREAM_H

#define stream one_parameter_stream
#include_next <hls_stream.h>
#undef stream

namespace hls {

template <class T, int DEPTH = 0> class stream;

template <class T> class stream<T, 0> : public one_parameter_stream<T> {
  public:
    stream() : one_parameter_stream<T>("unnamed") {}
    explicit stream(const char* name) : one_parameter_stream<T>(name) {}
};

template <class T, int DEPTH> class stream : public stream<T, 0> {
  public:
    stream() {}
    explicit stream(const char* name) : stream<T, 0>(name) {}
};

}  // namespace hls

#endif
