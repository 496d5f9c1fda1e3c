// Vectors of one instruction set: loads, stores and elementary functions.

#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ISA_NAMESPACE {

struct bfloat16 {
  uint16_t bits;
};

template <class Scalar> struct Lanes {
  static constexpr int64_t count = VECTOR_BYTES / sizeof(Scalar);
};
typedef float VectorF __attribute__((vector_size(VECTOR_BYTES)));
typedef double VectorD __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t VectorI __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t VectorL __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t VectorU __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t HalfU __attribute__((vector_size(VECTOR_BYTES / 2)));

template <class Element> struct Compute;
template <> struct Compute<float> {
  typedef float Scalar;
  typedef VectorF Vector;
};
template <> struct Compute<double> {
  typedef double Scalar;
  typedef VectorD Vector;
};
template <> struct Compute<bfloat16> {
  typedef float Scalar;
  typedef VectorF Vector;
};

template <class Vector> struct ScalarOf;
template <> struct ScalarOf<VectorF> {
  typedef float type;
};
template <> struct ScalarOf<VectorD> {
  typedef double type;
};

template <class Vector> struct Unaligned {
  typedef Vector type __attribute__((aligned(1), may_alias));
};

inline VectorF widen(HalfU bits) { return (VectorF)(__builtin_convertvector(bits, VectorU) << 16); }

// Round to nearest even; a NaN stays a NaN.
inline HalfU narrow(VectorF x) {
  VectorU bits = (VectorU)x;
  VectorU rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  VectorU quiet = (bits >> 16) | 0x40u;
  return __builtin_convertvector((VectorU)(x == x ? (VectorI)rounded : (VectorI)quiet), HalfU);
}

// `lanes` is the full width unless the problem has fewer blocks than a register has lanes.
template <bool Partial> inline VectorF load(const float* from, int64_t lanes) {
  if (!Partial) return *(const Unaligned<VectorF>::type*)from;
  VectorF x = {};
  memcpy(&x, from, lanes * sizeof(float));
  return x;
}
template <bool Partial> inline VectorD load(const double* from, int64_t lanes) {
  if (!Partial) return *(const Unaligned<VectorD>::type*)from;
  VectorD x = {};
  memcpy(&x, from, lanes * sizeof(double));
  return x;
}
template <bool Partial> inline VectorF load(const bfloat16* from, int64_t lanes) {
  HalfU bits = {};
  memcpy(&bits, from, Partial ? lanes * sizeof(bfloat16) : sizeof bits);
  return widen(bits);
}
template <bool Partial> inline void store(float* to, VectorF x, int64_t lanes) {
  if (!Partial)
    *(Unaligned<VectorF>::type*)to = x;
  else
    memcpy(to, &x, lanes * sizeof(float));
}
template <bool Partial> inline void store(double* to, VectorD x, int64_t lanes) {
  if (!Partial)
    *(Unaligned<VectorD>::type*)to = x;
  else
    memcpy(to, &x, lanes * sizeof(double));
}
template <bool Partial> inline void store(bfloat16* to, VectorF x, int64_t lanes) {
  HalfU bits = narrow(x);
  memcpy(to, &bits, Partial ? lanes * sizeof(bfloat16) : sizeof bits);
}

// Prefetch a cache line for a later step into the second-level cache. It supports more outstanding
// lines than the first-level cache, enough to hide the latency of memory.
template <class Element> inline void prefetch(const Element* from) {
  __builtin_prefetch(from, /*write=*/0, /*locality=*/2);
}

// Operations that vector types cannot express. A streaming store bypasses the caches, which saves
// reading a line before overwriting it; `to` must be aligned to the vector. larger(a, b) returns b
// if either is NaN.
#if defined(__x86_64__) && VECTOR_BYTES == 64
inline void stream(float* to, VectorF x) { _mm512_stream_ps(to, (__m512)x); }
inline void stream(double* to, VectorD x) { _mm512_stream_pd(to, (__m512d)x); }
inline void stream(bfloat16* to, VectorF x) {
  _mm256_stream_si256((__m256i*)to, (__m256i)narrow(x));
}
inline VectorF larger(VectorF a, VectorF b) { return (VectorF)_mm512_max_ps((__m512)a, (__m512)b); }
inline VectorD larger(VectorD a, VectorD b) {
  return (VectorD)_mm512_max_pd((__m512d)a, (__m512d)b);
}
inline void finish_streams() { _mm_sfence(); }
#elif defined(__x86_64__) && VECTOR_BYTES == 32
inline void stream(float* to, VectorF x) { _mm256_stream_ps(to, (__m256)x); }
inline void stream(double* to, VectorD x) { _mm256_stream_pd(to, (__m256d)x); }
inline void stream(bfloat16* to, VectorF x) { _mm_stream_si128((__m128i*)to, (__m128i)narrow(x)); }
inline VectorF larger(VectorF a, VectorF b) { return (VectorF)_mm256_max_ps((__m256)a, (__m256)b); }
inline VectorD larger(VectorD a, VectorD b) {
  return (VectorD)_mm256_max_pd((__m256d)a, (__m256d)b);
}
inline void finish_streams() { _mm_sfence(); }
#else
template <class Element, class V> inline void stream(Element* to, V x) { store<false>(to, x, 0); }
template <class V> inline V larger(V a, V b) { return a > b ? a : b; }
inline void finish_streams() {}
#endif

template <bool Partial, class Element, class V>
inline void write(Element* to, V x, int64_t lanes, bool streamed) {
  if (!Partial && streamed)
    stream(to, x);
  else
    store<Partial>(to, x, lanes);
}

// The largest power of two not above x >= 0: x without its mantissa.
inline VectorF power_of_two(VectorF x) { return (VectorF)((VectorI)x & 0x7f800000); }
inline VectorD power_of_two(VectorD x) { return (VectorD)((VectorL)x & 0x7ff0000000000000); }

template <class V> inline V absolute(V x) { return x < 0 ? -x : x; }

// unit * 2^y for y <= 0 and a unit that is a power of two, by 2^y = 2^n 2^r with |r| <= 1/2. The
// unit multiplies the coefficients of the polynomial, which changes no digit and costs nothing
// within a loop. A NaN stays a NaN. Where 2^n is no normal number the result is 0: a gate that
// underflows must not let anything through, however large. In float32 the polynomial is within
// 1.2e-7 of 2^r.
inline VectorF exp2_nonpositive(VectorF y, float unit = 1) {
#if defined(__x86_64__) && VECTOR_BYTES == 64
  VectorF n = (VectorF)_mm512_roundscale_ps((__m512)y, _MM_FROUND_TO_NEAREST_INT);
#else
  // 1.5 * 2^23 rounds its addend to an integer; 127 makes the last bits the exponent of 2^n. At
  // n = -127 these bits are those of 0.
  y = larger(VectorF{} - 127, y);
  const float shift = 12582912.0f + 127;
  VectorF rounded = y + shift;
  VectorF n = rounded - shift;
#endif
  VectorF r = y - n;
  VectorF p = r * (1.32647273e-03f * unit) + 9.67151299e-03f * unit;
  p = p * r + 5.55073358e-02f * unit;
  p = p * r + 2.40222424e-01f * unit;
  p = p * r + 6.93147004e-01f * unit;
  p = p * r + unit;
#if defined(__x86_64__) && VECTOR_BYTES == 64
  // "Not less" holds for a NaN too.
  __mmask16 normal = _mm512_cmp_ps_mask((__m512)n, _mm512_set1_ps(-126), _CMP_NLT_UQ);
  return (VectorF)_mm512_maskz_scalef_ps(normal, (__m512)p, (__m512)n);
#else
  return p * (VectorF)((VectorI)rounded << 23);
#endif
}
inline VectorD exp2_nonpositive(VectorD y, double unit = 1) {
  y = larger(VectorD{} - 1023, y);
  const double shift = 6755399441055744.0 + 1023;  // 1.5 * 2^52
  VectorD rounded = y + shift;
  VectorD r = (y - (rounded - shift)) * 6.93147180559945309417e-1;
  const double inverse_factorials[] = {1.0 / 479001600,
                                       1.0 / 39916800,
                                       1.0 / 3628800,
                                       1.0 / 362880,
                                       1.0 / 40320,
                                       1.0 / 5040,
                                       1.0 / 720,
                                       1.0 / 120,
                                       1.0 / 24,
                                       1.0 / 6,
                                       0.5,
                                       1.0,
                                       1.0};
  VectorD p = r * (1.0 / 6227020800.0 * unit) + inverse_factorials[0] * unit;
  for (int k = 1; k < 13; ++k) p = p * r + inverse_factorials[k] * unit;
  return p * (VectorD)((VectorL)rounded << 52);
}

inline VectorF times_log2e(VectorF x) { return x * 1.44269504088896341f; }
inline VectorD times_log2e(VectorD x) { return x * 1.44269504088896340736; }
template <class V> inline V exp_nonpositive(V x) { return exp2_nonpositive(times_log2e(x)); }

// tanh(x) near 0 needs high relative accuracy: gates may be tiny and are divided by their own sum.
// The polynomials are Taylor series, cut where the remainder falls below the rounding error.
inline VectorF tanh_small(VectorF x) {
  VectorF z = x * x;
  VectorF p = z * 2.1869488e-2f - 5.3968254e-2f;
  p = p * z + 1.3333334e-1f;
  p = p * z - 3.3333334e-1f;
  return x + x * z * p;
}
inline VectorD tanh_small(VectorD x) {
  VectorD z = x * x;
  const double series[] = {
      -929569.0 / 638512875.0, 21844.0 / 6081075.0, -1382.0 / 155925.0, 62.0 / 2835.0,
      -17.0 / 315.0,           2.0 / 15.0,          -1.0 / 3.0};
  VectorD p = VectorD{} + series[0];
  for (int k = 1; k < 7; ++k) p = p * z + series[k];
  return x + x * z * p;
}
template <class V> inline V tanh_limit();
template <> inline VectorF tanh_limit<VectorF>() { return VectorF{} + 0.2f; }
template <> inline VectorD tanh_limit<VectorD>() { return VectorD{} + 0.1; }
template <class V> inline V hyperbolic_tangent(V x) {
  V size = absolute(x);
  V t = exp_nonpositive(-2 * size);
  V large = (1 - t) / (1 + t);
  large = x < 0 ? -large : large;
  return size < tanh_limit<V>() ? tanh_small(x) : large;
}

}  // namespace ISA_NAMESPACE
