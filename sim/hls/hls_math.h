// The functions of Vitis' hls_math.h on floats, by those of the C++ library: as near to the true values, not the same bits
// (Vitis has its own approximations).
#ifndef CUVIL_SIM_HLS_MATH_H
#define CUVIL_SIM_HLS_MATH_H

#include <cmath>

namespace hls {

using std::acos;
using std::acosh;
using std::asin;
using std::asinh;
using std::atan;
using std::atan2;
using std::atanh;
using std::cbrt;
using std::ceil;
using std::copysign;
using std::cos;
using std::cosh;
using std::erf;
using std::exp;
using std::exp2;
using std::expm1;
using std::fabs;
using std::floor;
using std::fma;
using std::fmax;
using std::fmin;
using std::fmod;
using std::log;
using std::log10;
using std::log1p;
using std::log2;
using std::pow;
using std::rint;
using std::round;
using std::sin;
using std::sinh;
using std::sqrt;
using std::tan;
using std::tanh;
using std::trunc;

}  // namespace hls

#endif
