// Fast simulation of the Vitis HLS integer types: ap_int<W> and ap_uint<W> on the next native integer.
//
// Widths 1..64 are stored in int8/16/32/64; a value is always kept in range, so reading costs nothing, and writing costs a
// sign or zero extension only where W is not 8, 16, 32 or 64. Result types follow UG1399 ("Arbitrary Precision Data
// Types"): + and - grow by one bit, * adds the widths, & | ^ take the wider, << and >> keep the left operand's width, a
// negative shift amount shifts the other way, unary minus grows by one bit, ~ keeps the width.
//
// Results of 65..128 bits are exact too. They carry the low 64 bits beside the full value: code that narrows them at once,
// as accumulators do, uses only the low half, the rest is dead code, and loops still vectorise. A result beyond 128 bits
// is a compile-time error (Vitis goes on to 1024 bits).
//
// Two mixed-sign forms are compile-time errors here, since Xilinx's own C model gives them the value of the C conversion and
// not that of the numbers (-1 < 0u is false): comparing an ap_int with an ap_uint or unsigned C integer of at least 32
// bits that is no narrower, and ap_uint % ap_int. Cast one side first. (An ap_uint compared with a signed C integer, as in
// `count < 10`, is allowed and compares the numbers; the two models differ where that integer is negative.)
//
// Not here: floating-point and string constructors, concatenation, reductions, ap_fixed.
#ifndef CUVIL_SIM_AP_INT_H
#define CUVIL_SIM_AP_INT_H

#include <cstdint>
#include <stdexcept>
#include <type_traits>

template <int W> struct ap_int;
template <int W> struct ap_uint;

namespace cuvil_ap {

__extension__ typedef __int128 int128;
__extension__ typedef unsigned __int128 uint128;

constexpr int max(int a, int b) { return a > b ? a : b; }
constexpr int min(int a, int b) { return a < b ? a : b; }
constexpr int container_bits(int w) { return w <= 8 ? 8 : w <= 16 ? 16 : w <= 32 ? 32 : w <= 64 ? 64 : 128; }

template <int BITS, bool S> struct container;
template <> struct container<8, true> { typedef std::int8_t type; };
template <> struct container<16, true> { typedef std::int16_t type; };
template <> struct container<32, true> { typedef std::int32_t type; };
template <> struct container<64, true> { typedef std::int64_t type; };
template <> struct container<128, true> { typedef int128 type; };
template <> struct container<8, false> { typedef std::uint8_t type; };
template <> struct container<16, false> { typedef std::uint16_t type; };
template <> struct container<32, false> { typedef std::uint32_t type; };
template <> struct container<64, false> { typedef std::uint64_t type; };
template <> struct container<128, false> { typedef uint128 type; };

template <int W, bool S> using stored = typename container<container_bits(W), S>::type;
// C promotes narrow operands to int; naming the promoted type keeps every operation free of sign surprises.
template <int W, bool S> using computed = typename container<container_bits(max(W, 32)), S>::type;
// The type in which compound assignments wrap. Unsigned types always may; under -fwrapv signed ones may too, and only in sums
// of signed products does GCC see a dot product (vpmaddwd, vpdpbusd).
#ifdef CUVIL_SIM_WRAPV  // set it together with -fwrapv, never without
template <int W> using wrapping = computed<W, true>;
#else
template <int W> using wrapping = computed<W, false>;
#endif
template <int W, bool S> using number = typename std::conditional<S, ap_int<W>, ap_uint<W>>::type;

// The value x modulo 2^W, in the container of W bits.
template <int W, bool S, class X> constexpr stored<W, S> wrapped(X x) {
    typedef stored<W, S> Store;
    typedef stored<W, false> Bits;
    constexpr int spare = container_bits(W) - W;
    return spare == 0 ? static_cast<Store>(x)
           : S ? static_cast<Store>(static_cast<Store>(static_cast<Bits>(static_cast<Bits>(x) << spare)) >> spare)
               : static_cast<Store>(static_cast<Bits>(x) & static_cast<Bits>(static_cast<Bits>(~Bits(0)) >> spare));
}

template <class T> struct c_integer {
    static constexpr bool is_signed = std::is_signed<T>::value;
    static constexpr int width = std::is_same<T, bool>::value ? 1 : static_cast<int>(8 * sizeof(T));
};
template <class T> using if_integer = typename std::enable_if<std::is_integral<T>::value, int>::type;

// Compound assignment keeps W bits, and the low W bits of + - * need no more than the low W bits of both operands: so
// `acc += x * w` stays at the accumulator's own width, which is what lets loops vectorise.
struct add { template <class U> constexpr U operator()(U a, U b) const { return a + b; } };
struct subtract { template <class U> constexpr U operator()(U a, U b) const { return a - b; } };
struct multiply { template <class U> constexpr U operator()(U a, U b) const { return a * b; } };
template <class T, if_integer<T> = 0> constexpr T low_of(T x) { return x; }
template <class T> constexpr auto low_of(const T& x) -> decltype(x.low()) { return x.low(); }

// Does every value of W2 bits fit in W bits?
constexpr bool holds(int w, bool s, int w2, bool s2) { return s == s2 ? w >= w2 : s && w > w2; }

}  // namespace cuvil_ap

template <int W, bool S, bool WIDE = (W > 64)> struct ap_int_base;
namespace cuvil_ap {
template <int W, bool S> struct range_ref;
}

// Up to 64 bits.
template <int W, bool S> struct ap_int_base<W, S, false> {
    static_assert(W >= 1, "a width of at least one bit is needed");
    typedef cuvil_ap::stored<W, S> Store;
    static constexpr int width = W;
    Store value;

    ap_int_base() = default;
    template <int W2, bool S2> constexpr ap_int_base(const ap_int_base<W2, S2>& x)
        : value(cuvil_ap::holds(W, S, W2, S2) ? static_cast<Store>(x.low()) : cuvil_ap::wrapped<W, S>(x.low())) {}
    template <class T, cuvil_ap::if_integer<T> = 0> constexpr ap_int_base(T x) : value(cuvil_ap::wrapped<W, S>(x)) {}

    constexpr Store low() const { return value; }
    constexpr Store full() const { return value; }
    template <class L, class F> static constexpr ap_int_base exact(L low, F) { return ap_int_base(low, 0); }

  private:
    template <class L> constexpr ap_int_base(L x, int) : value(static_cast<Store>(x)) {}

  public:
    typedef typename std::conditional<S, long long, unsigned long long>::type Native;
    constexpr operator Native() const { return value; }
    constexpr bool to_bool() const { return value != 0; }
    constexpr int to_int() const { return static_cast<int>(value); }
    constexpr unsigned to_uint() const { return static_cast<unsigned>(value); }
    constexpr long to_long() const { return static_cast<long>(value); }
    constexpr unsigned long to_ulong() const { return static_cast<unsigned long>(value); }
    constexpr long long to_int64() const { return static_cast<long long>(value); }
    constexpr unsigned long long to_uint64() const { return static_cast<unsigned long long>(value); }
    constexpr float to_float() const { return static_cast<float>(value); }
    constexpr double to_double() const { return static_cast<double>(value); }
    constexpr int length() const { return W; }
    constexpr bool is_zero() const { return value == 0; }
    constexpr bool sign() const { return value < Store(0); }

    class BitRef {
        ap_int_base& owner_;
        int index_;

      public:
        constexpr BitRef(ap_int_base& owner, int index) : owner_(owner), index_(index) {}
        constexpr operator bool() const { return owner_.get_bit(index_); }
        constexpr BitRef& operator=(bool bit) { owner_.set_bit(index_, bit); return *this; }
        constexpr BitRef& operator=(const BitRef& other) { return *this = static_cast<bool>(other); }
    };
    constexpr bool get_bit(int index) const { return static_cast<std::uint64_t>(value) >> index & 1; }
    constexpr void set_bit(int index, bool bit) { assign_bits(index, index, bit); }
    constexpr bool test(int index) const { return get_bit(index); }
    constexpr bool operator[](int index) const { return get_bit(index); }
    constexpr BitRef operator[](int index) { return BitRef(*this, index); }
    constexpr ap_uint<W> range(int high, int low) const {
        return ap_uint<W>(static_cast<std::uint64_t>(value) >> low & mask_of(high - low + 1));
    }
    constexpr cuvil_ap::range_ref<W, S> range(int high, int low) {
        return cuvil_ap::range_ref<W, S>(*this, high, low);
    }
    constexpr ap_uint<W> operator()(int high, int low) const { return range(high, low); }
    constexpr cuvil_ap::range_ref<W, S> operator()(int high, int low) { return range(high, low); }
    constexpr void assign_bits(int high, int low, std::uint64_t bits) {
        const std::uint64_t mask = mask_of(high - low + 1) << low;
        const std::uint64_t old = static_cast<std::uint64_t>(value);
        value = cuvil_ap::wrapped<W, S>((old & ~mask) | ((bits << low) & mask));
    }

  private:
    static constexpr std::uint64_t mask_of(int bits) { return ~std::uint64_t(0) >> (64 - bits); }
};

// 65..128 bits: intermediate results only.
template <int W, bool S> struct ap_int_base<W, S, true> {
    static_assert(W <= 128, "the simulator has no integers beyond 128 bits: cast an operand to fewer bits first");
    typedef cuvil_ap::stored<W, S> Store;
    static constexpr int width = W;
    std::uint64_t low_bits;
    Store value;

    ap_int_base() = default;
    template <int W2, bool S2> constexpr ap_int_base(const ap_int_base<W2, S2>& x)
        : low_bits(static_cast<std::uint64_t>(x.low())), value(cuvil_ap::wrapped<W, S>(x.full())) {}
    template <class T, cuvil_ap::if_integer<T> = 0> constexpr ap_int_base(T x)
        : low_bits(static_cast<std::uint64_t>(x)), value(cuvil_ap::wrapped<W, S>(x)) {}

    constexpr std::uint64_t low() const { return low_bits; }
    constexpr Store full() const { return value; }
    template <class L, class F> static constexpr ap_int_base exact(L low, F full) { return ap_int_base(low, full, 0); }

  private:
    template <class L, class F> constexpr ap_int_base(L low, F full, int)
        : low_bits(static_cast<std::uint64_t>(low)), value(static_cast<Store>(full)) {}

  public:
    typedef typename std::conditional<S, long long, unsigned long long>::type Native;
    constexpr operator Native() const { return static_cast<Native>(low_bits); }
    constexpr bool to_bool() const { return value != 0; }
    constexpr int to_int() const { return static_cast<int>(low_bits); }
    constexpr unsigned to_uint() const { return static_cast<unsigned>(low_bits); }
    constexpr long to_long() const { return static_cast<long>(low_bits); }
    constexpr unsigned long to_ulong() const { return low_bits; }
    constexpr long long to_int64() const { return static_cast<long long>(low_bits); }
    constexpr unsigned long long to_uint64() const { return low_bits; }
    constexpr int length() const { return W; }
    constexpr bool is_zero() const { return value == 0; }
    constexpr bool sign() const { return value < Store(0); }
};

#define CUVIL_AP_COMPOUND(SELF)                                                                        \
    template <class T> constexpr SELF& operator+=(const T& x) { return *this = SELF(*this, x, cuvil_ap::add()); } \
    template <class T> constexpr SELF& operator-=(const T& x) { return *this = SELF(*this, x, cuvil_ap::subtract()); } \
    template <class T> constexpr SELF& operator*=(const T& x) { return *this = SELF(*this, x, cuvil_ap::multiply()); } \
    template <class T> constexpr SELF& operator/=(const T& x) { return *this = SELF(*this / x); }      \
    template <class T> constexpr SELF& operator%=(const T& x) { return *this = SELF(*this % x); }      \
    template <class T> constexpr SELF& operator&=(const T& x) { return *this = SELF(*this & x); }      \
    template <class T> constexpr SELF& operator|=(const T& x) { return *this = SELF(*this | x); }      \
    template <class T> constexpr SELF& operator^=(const T& x) { return *this = SELF(*this ^ x); }      \
    template <class T> constexpr SELF& operator<<=(const T& x) { return *this = SELF(*this << x); }    \
    template <class T> constexpr SELF& operator>>=(const T& x) { return *this = SELF(*this >> x); }    \
    constexpr SELF& operator++() { return *this = SELF(*this + ap_uint<1>(1)); }                       \
    constexpr SELF& operator--() { return *this = SELF(*this - ap_uint<1>(1)); }                       \
    constexpr SELF operator++(int) { SELF old = *this; ++*this; return old; }                          \
    constexpr SELF operator--(int) { SELF old = *this; --*this; return old; }

template <int W> struct ap_int : ap_int_base<W, true> {
    typedef ap_int_base<W, true> Base;
    ap_int() = default;
    constexpr ap_int(const Base& x) : Base(x) {}
    template <int W2, bool S2> constexpr ap_int(const ap_int_base<W2, S2>& x) : Base(x) {}
    template <class T, cuvil_ap::if_integer<T> = 0> constexpr ap_int(T x) : Base(x) {}
    template <class T, class OP> constexpr ap_int(const ap_int& a, const T& b, OP op)
        : Base(op(static_cast<cuvil_ap::wrapping<W>>(a.low()),
                  static_cast<cuvil_ap::wrapping<W>>(cuvil_ap::low_of(b)))) {}
    CUVIL_AP_COMPOUND(ap_int)
};

template <int W> struct ap_uint : ap_int_base<W, false> {
    typedef ap_int_base<W, false> Base;
    ap_uint() = default;
    constexpr ap_uint(const Base& x) : Base(x) {}
    template <int W2, bool S2> constexpr ap_uint(const ap_int_base<W2, S2>& x) : Base(x) {}
    template <class T, cuvil_ap::if_integer<T> = 0> constexpr ap_uint(T x) : Base(x) {}
    template <class T, class OP> constexpr ap_uint(const ap_uint& a, const T& b, OP op)
        : Base(op(static_cast<cuvil_ap::wrapping<W>>(a.low()),
                  static_cast<cuvil_ap::wrapping<W>>(cuvil_ap::low_of(b)))) {}
    CUVIL_AP_COMPOUND(ap_uint)
};
#undef CUVIL_AP_COMPOUND

namespace cuvil_ap {

// x.range(high, low): reads as the bits it had when it was formed, assigns to the bits of x.
template <int W, bool S> struct range_ref : ap_uint<W> {
    ap_int_base<W, S>& owner;
    int high, low_bit;
    constexpr range_ref(ap_int_base<W, S>& x, int high_index, int low_index)
        : ap_uint<W>(static_cast<const ap_int_base<W, S>&>(x).range(high_index, low_index)),
          owner(x), high(high_index), low_bit(low_index) {}
    constexpr range_ref(const range_ref&) = default;
    constexpr range_ref& operator=(std::uint64_t bits) {
        owner.assign_bits(high, low_bit, bits);
        this->value = static_cast<const ap_int_base<W, S>&>(owner).range(high, low_bit).value;
        return *this;
    }
    constexpr range_ref& operator=(const range_ref& other) { return *this = static_cast<std::uint64_t>(other.value); }
};

template <int W1, bool S1, int W2, bool S2> struct result {
    static constexpr bool any_signed = S1 || S2;
    // One more bit where an unsigned operand meets a signed one.
    static constexpr int common = max(W1 + (S2 && !S1), W2 + (S1 && !S2));
    typedef number<W1 + W2, any_signed> mul;
    typedef number<common + 1, any_signed> add;
    typedef number<common + 1, true> sub;
    typedef number<common, any_signed> logic;
    typedef number<W1 + S2, any_signed> div;
    typedef number<min(W1, W2 + (!S2 && S1)), S1> mod;
};

template <class R> struct traits;
template <int W> struct traits<ap_int<W>> { typedef computed<W, true> compute; typedef computed<min(W, 64), true> low; };
template <int W> struct traits<ap_uint<W>> { typedef computed<W, false> compute; typedef computed<min(W, 64), false> low; };

// Low halves of wide results are computed without sign, where wrapping is defined.
template <class R> using low_compute =
    typename std::conditional<(R::width > 64), std::uint64_t, typename traits<R>::low>::type;

}  // namespace cuvil_ap

// The widths make every result exact, so none of these wraps.
#define CUVIL_AP_BINARY(OP, KIND)                                                                           \
    template <int W1, bool S1, int W2, bool S2> constexpr typename cuvil_ap::result<W1, S1, W2, S2>::KIND   \
    operator OP(const ap_int_base<W1, S1>& a, const ap_int_base<W2, S2>& b) {                               \
        typedef typename cuvil_ap::result<W1, S1, W2, S2>::KIND R;                                          \
        typedef cuvil_ap::low_compute<R> L;                                                                 \
        typedef typename cuvil_ap::traits<R>::compute F;                                                    \
        return R(R::Base::exact(static_cast<L>(a.low()) OP static_cast<L>(b.low()),                         \
                                static_cast<F>(a.full()) OP static_cast<F>(b.full())));                     \
    }
CUVIL_AP_BINARY(+, add)
CUVIL_AP_BINARY(-, sub)
CUVIL_AP_BINARY(*, mul)
CUVIL_AP_BINARY(&, logic)
CUVIL_AP_BINARY(|, logic)
CUVIL_AP_BINARY(^, logic)
#undef CUVIL_AP_BINARY

#define CUVIL_AP_DIVIDE(OP, KIND, ALLOWED)                                                                           \
    template <int W1, bool S1, int W2, bool S2> constexpr typename cuvil_ap::result<W1, S1, W2, S2>::KIND   \
    operator OP(const ap_int_base<W1, S1>& a, const ap_int_base<W2, S2>& b) {                               \
        typedef typename cuvil_ap::result<W1, S1, W2, S2>::KIND R;                                          \
        typedef cuvil_ap::computed<cuvil_ap::result<W1, S1, W2, S2>::common + 1, S1 || S2> F;               \
        static_assert(ALLOWED, "ap_uint % ap_int differs in Xilinx's C model: cast one side first");        \
        if (b.full() == 0) throw std::domain_error("ap_int division by zero");                              \
        return R(cuvil_ap::number<cuvil_ap::result<W1, S1, W2, S2>::common + 1, S1 || S2>::Base::exact(     \
            static_cast<F>(a.full()) OP static_cast<F>(b.full()),                                           \
            static_cast<F>(a.full()) OP static_cast<F>(b.full())));                                         \
    }
CUVIL_AP_DIVIDE(/, div, true)
CUVIL_AP_DIVIDE(%, mod, (S1 || !S2))
#undef CUVIL_AP_DIVIDE

namespace cuvil_ap {
// Does Xilinx's C model turn the signed one of two numbers into an unsigned C integer before comparing?
constexpr bool compared_unsigned(int w1, bool s1, int w2, bool s2) {
    return s1 != s2 && (s1 ? w2 : w1) >= 32 && (s1 ? w2 : w1) >= (s1 ? w1 : w2);
}
template <int W1, bool S1, int W2, bool S2> struct compared {
    typedef computed<result<W1, S1, W2, S2>::common, S1 || S2> type;
};
}  // namespace cuvil_ap

#define CUVIL_AP_COMPARE(OP)                                                                                \
    template <int W1, bool S1, int W2, bool S2>                                                             \
    constexpr bool operator OP(const ap_int_base<W1, S1>& a, const ap_int_base<W2, S2>& b) {                \
        static_assert(!cuvil_ap::compared_unsigned(W1, S1, W2, S2),                                         \
                      "Xilinx's C model compares these as unsigned: cast one side to the other's signedness first"); \
        typedef typename cuvil_ap::compared<W1, S1, W2, S2>::type F;                                        \
        return static_cast<F>(a.full()) OP static_cast<F>(b.full());                                        \
    }                                                                                                       \
    template <int W, bool S, class T, cuvil_ap::if_integer<T> = 0>                                          \
    constexpr bool operator OP(const ap_int_base<W, S>& a, T b) {                                           \
        typedef cuvil_ap::c_integer<T> C;                                                                   \
        static_assert(C::is_signed || !cuvil_ap::compared_unsigned(W, S, C::width, false),                  \
                      "Xilinx's C model compares these as unsigned: cast one side to the other's signedness first"); \
        typedef typename cuvil_ap::compared<W, S, C::width, C::is_signed>::type F;                          \
        return static_cast<F>(a.full()) OP static_cast<F>(b);                                               \
    }                                                                                                       \
    template <int W, bool S, class T, cuvil_ap::if_integer<T> = 0>                                          \
    constexpr bool operator OP(T a, const ap_int_base<W, S>& b) {                                           \
        typedef cuvil_ap::c_integer<T> C;                                                                   \
        static_assert(C::is_signed || !cuvil_ap::compared_unsigned(W, S, C::width, false),                  \
                      "Xilinx's C model compares these as unsigned: cast one side to the other's signedness first"); \
        typedef typename cuvil_ap::compared<W, S, C::width, C::is_signed>::type F;                          \
        return static_cast<F>(a) OP static_cast<F>(b.full());                                               \
    }
CUVIL_AP_COMPARE(==)
CUVIL_AP_COMPARE(!=)
CUVIL_AP_COMPARE(<)
CUVIL_AP_COMPARE(<=)
CUVIL_AP_COMPARE(>)
CUVIL_AP_COMPARE(>=)
#undef CUVIL_AP_COMPARE

namespace cuvil_ap {

template <int W, bool S> constexpr number<W, S> shifted_left(const ap_int_base<W, S>& x, unsigned n, bool may_exceed) {
    typedef computed<W, false> Bits;
    return may_exceed && n >= 8 * sizeof(Bits) ? number<W, S>(0)
                                               : number<W, S>(ap_int_base<W, S>::exact(
                                                     wrapped<W, S>(static_cast<Bits>(x.full()) << n),
                                                     wrapped<W, S>(static_cast<Bits>(x.full()) << n)));
}
// x86 before AVX-512 has no vector form of a 64-bit arithmetic shift, so a plain one keeps a loop from vectorising.
constexpr std::int64_t arithmetic_shift(std::int64_t x, unsigned n) {
#if defined(__AVX2__) && !defined(__AVX512VL__)
    const std::uint64_t sign = std::uint64_t(1) << 63;
    return static_cast<std::int64_t>(((static_cast<std::uint64_t>(x) ^ sign) >> n) - (sign >> n));
#else
    return x >> n;
#endif
}
template <class T> constexpr T arithmetic_shift(T x, unsigned n) { return static_cast<T>(x >> n); }

template <int W, bool S> constexpr number<W, S> shifted_right(const ap_int_base<W, S>& x, unsigned n, bool may_exceed) {
    typedef computed<W, S> Value;
    const unsigned most = 8 * sizeof(Value) - 1;
    // Past the container: twice the largest legal shift leaves only the sign, as the standard has no such shift.
    const Value y = may_exceed && n > most ? static_cast<Value>(static_cast<Value>(x.full()) >> most >> 1)
                                           : arithmetic_shift(static_cast<Value>(x.full()), n);
    return number<W, S>(ap_int_base<W, S>::exact(y, y));
}
// Can an amount of W2 bits reach the width of the container that holds W bits? Then (and only then) the shift is guarded.
constexpr bool may_exceed(int w, int w2) { return w2 > (w <= 32 ? 5 : w <= 64 ? 6 : 7); }

}  // namespace cuvil_ap

#define CUVIL_AP_SHIFT(OP, SAME, OTHER)                                                                     \
    template <int W, bool S, int W2>                                                                        \
    constexpr cuvil_ap::number<W, S> operator OP(const ap_int_base<W, S>& x, const ap_int_base<W2, false>& n) { \
        return cuvil_ap::SAME(x, static_cast<unsigned>(n.low()), cuvil_ap::may_exceed(W, W2));              \
    }                                                                                                       \
    template <int W, bool S, int W2>                                                                        \
    constexpr cuvil_ap::number<W, S> operator OP(const ap_int_base<W, S>& x, const ap_int_base<W2, true>& n) { \
        return n.full() < 0 ? cuvil_ap::OTHER(x, static_cast<unsigned>(-static_cast<std::int64_t>(n.low())), true) \
                            : cuvil_ap::SAME(x, static_cast<unsigned>(n.low()), cuvil_ap::may_exceed(W, W2 - 1)); \
    }                                                                                                       \
    template <int W, bool S, class T, cuvil_ap::if_integer<T> = 0>                                          \
    constexpr cuvil_ap::number<W, S> operator OP(const ap_int_base<W, S>& x, T n) {                         \
        return x OP ap_int_base<cuvil_ap::c_integer<T>::width, cuvil_ap::c_integer<T>::is_signed>(n);       \
    }
CUVIL_AP_SHIFT(<<, shifted_left, shifted_right)
CUVIL_AP_SHIFT(>>, shifted_right, shifted_left)
#undef CUVIL_AP_SHIFT

template <int W, bool S> constexpr ap_int<cuvil_ap::max(W, 1 + S) + 1> operator-(const ap_int_base<W, S>& x) {
    return ap_uint<1>(0) - x;
}
template <int W, bool S> constexpr cuvil_ap::number<W, S> operator+(const ap_int_base<W, S>& x) { return x; }
template <int W, bool S> constexpr cuvil_ap::number<W, S> operator~(const ap_int_base<W, S>& x) {
    return ap_int_base<W, S>::exact(cuvil_ap::wrapped<W, S>(~x.full()), cuvil_ap::wrapped<W, S>(~x.full()));
}
template <int W, bool S> constexpr bool operator!(const ap_int_base<W, S>& x) { return x.full() == 0; }

// A C integer counts as an ap_int or ap_uint of its own width; bool as ap_uint<1>.
#define CUVIL_AP_MIXED(OP)                                                                                  \
    template <int W, bool S, class T, cuvil_ap::if_integer<T> = 0>                                          \
    constexpr auto operator OP(const ap_int_base<W, S>& a, T b) {                                           \
        return a OP ap_int_base<cuvil_ap::c_integer<T>::width, cuvil_ap::c_integer<T>::is_signed>(b);       \
    }                                                                                                       \
    template <int W, bool S, class T, cuvil_ap::if_integer<T> = 0>                                          \
    constexpr auto operator OP(T a, const ap_int_base<W, S>& b) {                                           \
        return ap_int_base<cuvil_ap::c_integer<T>::width, cuvil_ap::c_integer<T>::is_signed>(a) OP b;       \
    }
CUVIL_AP_MIXED(+)
CUVIL_AP_MIXED(-)
CUVIL_AP_MIXED(*)
CUVIL_AP_MIXED(/)
CUVIL_AP_MIXED(%)
CUVIL_AP_MIXED(&)
CUVIL_AP_MIXED(|)
CUVIL_AP_MIXED(^)
#undef CUVIL_AP_MIXED

#endif
