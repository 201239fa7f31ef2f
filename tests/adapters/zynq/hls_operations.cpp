#include <ap_int.h>
#include <cstdio>
typedef unsigned long long u64;
static u64 state = 7;
static u64 random_bits() {  // xorshift64, every fourth draw an extreme
    state ^= state << 13; state ^= state >> 7; state ^= state << 17;
    const u64 edges[] = {0, 1, ~0ull, 1ull << 63, ~0ull >> 1};
    return state % 4 ? state : edges[state / 4 % 5];
}
// Xilinx's plain ap_int<W>(u64) keeps the low W bits, as ours.
template <class T> static T draw(int width) {
    const u64 r = random_bits();
    return T(state % 3 ? r : width < 64 ? r >> (64 - width) : r);
}
static u64 digest;
static long checked;
template <class R> static void see(const R& r) {
    ap_int<64> low = r;
    digest = (digest ^ low.to_uint64()) * 0x100000001b3ull + R::width;
    ++checked;
}
static void see_bool(bool b) { digest = (digest ^ b) * 0x100000001b3ull; ++checked; }
#define EACH(NAME, BODY)                                                       \
    { digest = 0xcbf29ce484222325ull; state = 88172645463325252ull;            \
      for (int i = 0; i < 150; ++i) { A a = draw<A>(A::width); B b = draw<B>(B::width); (void)a; (void)b; BODY }  \
      std::printf("%s %s %016llx\n", label, NAME, digest); }
// C: B at its width, of a sign that may be compared with A.
template <class A, class B, class C> static void pair(const char* label) {
    EACH("+", see(a + b); see(b + a);)
    EACH("-", see(a - b); see(b - a);)
    EACH("*", see(a * b);)
    EACH("&", see(a & b); see(a | b); see(a ^ b);)
    EACH("unary", see(-a); see(~a); see(+a); see_bool(!a);)
    EACH("compare", C d = b; see_bool(a == d); see_bool(a != d); see_bool(a < d); see_bool(a <= d); see_bool(a > d); see_bool(a >= d);)
    EACH("shift by int", int n = (int)(random_bits() % 70); see(a << n); see(a >> n); see(b >> 3u); see(b << 2);)
    EACH("shift by ap", ap_uint<7> n = random_bits() % 70; ap_int<5> m = random_bits(); see(a << n); see(a >> n); see(a << m); see(a >> m);)
    EACH("compound", A c = a; c += b; see(c); c -= a; see(c); c *= b; see(c); c &= b; see(c); c |= a; see(c); c ^= b; see(c); c >>= 2; see(c); c <<= 3; see(c);)
    EACH("step", A c = a; ++c; see(c); c--; see(c); see(c++); see(--c);)
    EACH("mixed", see(a + 5); see(7 - a); see(a * -3); see(a & 255u); see(a + (short)-9); see(a * (signed char)-7); see(a - true);)
    EACH("mixed compare", see_bool(a < 3); see_bool(2 < a); see_bool((short)1 == a); see_bool(a == true); see_bool(a != (unsigned short)7);)
    EACH("mixed compound", A c = a; c += 1000; see(c); c -= 3u; see(c); c *= -5; see(c); c |= 1;  see(c);)
    EACH("narrow", see(A(b)); see(B(a)); A c; c = b; see(c); see(ap_int<5>(a)); see(ap_uint<5>(b)); see(ap_int<23>(a * b)); see(ap_int<61>(a + b));)
    EACH("wide", ap_int<64> c = (a * b) >> 9; see(c); see_bool(a * b > 12345); c = (a + b) >> 1; see(c);)
    EACH("bits", see_bool(a[0]); see_bool(a[A::width - 1]); A c = a; c[0] = !c[0]; see(c); c.range(A::width - 1, A::width / 2) = 1; see(c);
         see(ap_uint<64>(a.range(A::width - 1, A::width / 3))); see(ap_uint<64>(a(A::width / 2, 0))); see_bool(a.sign());)
    EACH("to C", long long x = a; digest ^= (u64)x * 3; digest = digest * 31 + (unsigned)a.to_int() + (u64)a.to_int64() + a.to_uint(); ++checked;)
    EACH("divide", C d = b; if (d != C(0)) see(a / b); if (d != C(0)) see(a % d);)
}
int main() {
PAIRS
    std::printf("checked %ld\n", checked);
}
