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

// GCC converts a vector of 64 bytes in two halves.
#if defined(__x86_64__) && VECTOR_BYTES == 64
inline VectorU lengthen(HalfU bits) { return (VectorU)_mm512_cvtepu16_epi32((__m256i)bits); }
inline HalfU shorten(VectorU bits) { return (HalfU)_mm512_cvtepi32_epi16((__m512i)bits); }
#else
inline VectorU lengthen(HalfU bits) { return __builtin_convertvector(bits, VectorU); }
inline HalfU shorten(VectorU bits) { return __builtin_convertvector(bits, HalfU); }
#endif
inline VectorF widen(HalfU bits) { return (VectorF)(lengthen(bits) << 16); }

// Round to nearest even; a NaN stays a NaN. The instruction of AVX512_BF16 rounds denormal numbers
// to zero.
#if defined(__AVX512BF16__) && VECTOR_BYTES == 64
inline HalfU narrow(VectorF x) { return (HalfU)_mm512_cvtneps_pbh((__m512)x); }
#else
inline HalfU narrow(VectorF x) {
  VectorU bits = (VectorU)x;
  VectorU rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  VectorU quiet = (bits >> 16) | 0x40u;
  return shorten((VectorU)(x == x ? (VectorI)rounded : (VectorI)quiet));
}
#endif

// The first `lanes` numbers of a register, zeros behind them.
#if defined(__x86_64__) && VECTOR_BYTES == 64
inline __mmask16 first(int64_t lanes) { return (__mmask16)((1u << lanes) - 1); }
inline VectorF load_some(const float* from, int64_t lanes) {
  return (VectorF)_mm512_maskz_loadu_ps(first(lanes), from);
}
inline VectorD load_some(const double* from, int64_t lanes) {
  return (VectorD)_mm512_maskz_loadu_pd((__mmask8)first(lanes), from);
}
inline HalfU load_some(const bfloat16* from, int64_t lanes) {
  return (HalfU)_mm256_maskz_loadu_epi16(first(lanes), from);
}
inline void store_some(float* to, VectorF x, int64_t lanes) {
  _mm512_mask_storeu_ps(to, first(lanes), (__m512)x);
}
inline void store_some(double* to, VectorD x, int64_t lanes) {
  _mm512_mask_storeu_pd(to, (__mmask8)first(lanes), (__m512d)x);
}
inline void store_some(bfloat16* to, HalfU x, int64_t lanes) {
  _mm256_mask_storeu_epi16(to, first(lanes), (__m256i)x);
}
#else
template <class V, class Element> inline V copy_some(const Element* from, int64_t lanes) {
  V x = {};
  memcpy(&x, from, lanes * sizeof(Element));
  return x;
}
inline HalfU load_some(const bfloat16* from, int64_t n) { return copy_some<HalfU>(from, n); }
inline void store_some(bfloat16* to, HalfU x, int64_t n) { memcpy(to, &x, n * sizeof(bfloat16)); }
#if defined(__x86_64__) && VECTOR_BYTES == 32
// A copy whose length is no constant is a function call, and takes longer than the rest of a step.
// The instruction that stores with a mask is slow on some processors.
inline VectorF load_some(const float* from, int64_t lanes) {
  const VectorI numbers = {0, 1, 2, 3, 4, 5, 6, 7};
  return (VectorF)_mm256_maskload_ps(from, (__m256i)(numbers < (int32_t)lanes));
}
inline VectorD load_some(const double* from, int64_t lanes) {
  const VectorL numbers = {0, 1, 2, 3};
  return (VectorD)_mm256_maskload_pd(from, (__m256i)(numbers < lanes));
}
inline void store_some(float* to, VectorF x, int64_t lanes) {
  __m128 rest = _mm256_castps256_ps128((__m256)x);
  if (lanes & 4) {
    _mm_storeu_ps(to, rest);
    rest = _mm256_extractf128_ps((__m256)x, 1);
    to += 4;
  }
  if (lanes & 2) {
    _mm_storel_pi((__m64*)to, rest);
    rest = _mm_movehl_ps(rest, rest);
    to += 2;
  }
  if (lanes & 1) _mm_store_ss(to, rest);
}
inline void store_some(double* to, VectorD x, int64_t lanes) {
  __m128d rest = _mm256_castpd256_pd128((__m256d)x);
  if (lanes & 2) {
    _mm_storeu_pd(to, rest);
    rest = _mm256_extractf128_pd((__m256d)x, 1);
    to += 2;
  }
  if (lanes & 1) _mm_store_sd(to, rest);
}
#else
inline VectorF load_some(const float* from, int64_t n) { return copy_some<VectorF>(from, n); }
inline VectorD load_some(const double* from, int64_t n) { return copy_some<VectorD>(from, n); }
template <class Element, class V> inline void store_some(Element* to, V x, int64_t lanes) {
  memcpy(to, &x, lanes * sizeof(Element));
}
#endif
#endif

// `lanes` is the full width unless the problem has fewer blocks than a register has lanes.
template <bool Partial> inline VectorF load(const float* from, int64_t lanes) {
  return Partial ? load_some(from, lanes) : *(const Unaligned<VectorF>::type*)from;
}
template <bool Partial> inline VectorD load(const double* from, int64_t lanes) {
  return Partial ? load_some(from, lanes) : *(const Unaligned<VectorD>::type*)from;
}
template <bool Partial> inline VectorF load(const bfloat16* from, int64_t lanes) {
  return widen(Partial ? load_some(from, lanes) : *(const Unaligned<HalfU>::type*)from);
}
template <bool Partial> inline void store(float* to, VectorF x, int64_t lanes) {
  if (Partial)
    store_some(to, x, lanes);
  else
    *(Unaligned<VectorF>::type*)to = x;
}
template <bool Partial> inline void store(double* to, VectorD x, int64_t lanes) {
  if (Partial)
    store_some(to, x, lanes);
  else
    *(Unaligned<VectorD>::type*)to = x;
}
template <bool Partial> inline void store(bfloat16* to, VectorF x, int64_t lanes) {
  if (Partial)
    store_some(to, narrow(x), lanes);
  else
    *(Unaligned<HalfU>::type*)to = narrow(x);
}

// Prefetch a cache line for a later step into the second-level cache. It supports more outstanding
// lines than the first-level cache, enough to hide the latency of memory.
template <class Element> inline void prefetch(const Element* from) {
  asm volatile("");  // GCC may drop calls of a function that only prefetches
  __builtin_prefetch(from, /*write=*/0, /*locality=*/2);
}

// Operations that vector types cannot express. A streaming store bypasses the caches, which saves
// reading a line before overwriting it; `to` must be aligned to the vector. Numbers of 16 bits fill
// half a vector, and half a line costs more to write than a whole one: the first half waits in
// `half` for the second, which the next tile brings. larger(a, b) and
// smaller(a, b) return b if either is NaN.
#if defined(__x86_64__) && VECTOR_BYTES == 64
inline void stream(float* to, VectorF x, HalfU*) { _mm512_stream_ps(to, (__m512)x); }
inline void stream(double* to, VectorD x, HalfU*) { _mm512_stream_pd(to, (__m512d)x); }
inline void stream(bfloat16* to, VectorF x, HalfU* half) {
  if ((uintptr_t)to % VECTOR_BYTES == 0) {
    *half = narrow(x);
    return;
  }
  __m512i line = _mm512_castsi256_si512((__m256i)*half);
  line = _mm512_inserti64x4(line, (__m256i)narrow(x), 1);
  _mm512_stream_si512((__m512i*)(to - VECTOR_BYTES / 4), line);
}
inline VectorF larger(VectorF a, VectorF b) { return (VectorF)_mm512_max_ps((__m512)a, (__m512)b); }
inline VectorD larger(VectorD a, VectorD b) {
  return (VectorD)_mm512_max_pd((__m512d)a, (__m512d)b);
}
inline VectorF smaller(VectorF a, VectorF b) {
  return (VectorF)_mm512_min_ps((__m512)a, (__m512)b);
}
inline VectorD smaller(VectorD a, VectorD b) {
  return (VectorD)_mm512_min_pd((__m512d)a, (__m512d)b);
}
inline void finish_streams() { _mm_sfence(); }
#elif defined(__x86_64__) && VECTOR_BYTES == 32
inline void stream(float* to, VectorF x, HalfU*) { _mm256_stream_ps(to, (__m256)x); }
inline void stream(double* to, VectorD x, HalfU*) { _mm256_stream_pd(to, (__m256d)x); }
inline void stream(bfloat16* to, VectorF x, HalfU*) {
  _mm_stream_si128((__m128i*)to, (__m128i)narrow(x));
}
inline VectorF larger(VectorF a, VectorF b) { return (VectorF)_mm256_max_ps((__m256)a, (__m256)b); }
inline VectorD larger(VectorD a, VectorD b) {
  return (VectorD)_mm256_max_pd((__m256d)a, (__m256d)b);
}
inline VectorF smaller(VectorF a, VectorF b) {
  return (VectorF)_mm256_min_ps((__m256)a, (__m256)b);
}
inline VectorD smaller(VectorD a, VectorD b) {
  return (VectorD)_mm256_min_pd((__m256d)a, (__m256d)b);
}
inline void finish_streams() { _mm_sfence(); }
#else
template <class Element, class V> inline void stream(Element* to, V x, HalfU*) {
  store<false>(to, x, 0);
}
template <class V> inline V larger(V a, V b) { return a > b ? a : b; }
template <class V> inline V smaller(V a, V b) { return a < b ? a : b; }
inline void finish_streams() {}
#endif

template <bool Partial, class Element, class V>
inline void write(Element* to, V x, int64_t lanes, bool streamed, HalfU* half) {
  if (!Partial && streamed)
    stream(to, x, half);
  else
    store<Partial>(to, x, lanes);
}

// The largest power of two not above x >= 0: x without its mantissa.
inline VectorF power_of_two(VectorF x) { return (VectorF)((VectorI)x & 0x7f800000); }
inline VectorD power_of_two(VectorD x) { return (VectorD)((VectorL)x & 0x7ff0000000000000); }

inline VectorF absolute(VectorF x) { return (VectorF)((VectorI)x & 0x7fffffff); }
inline VectorD absolute(VectorD x) { return (VectorD)((VectorL)x & 0x7fffffffffffffff); }

// unit * 2^y for y <= 0 and a unit that is a power of two, by 2^y = 2^n 2^r with an integer n. The
// unit multiplies the coefficients of the polynomial, which changes no digit and costs nothing
// within a loop. A NaN stays a NaN. Where 2^n is no normal number the result is 0: a gate that
// underflows must not let anything through, however large. In float32 the polynomials are within
// 1.5e-7 of 2^r, and exactly 1 at 0.
#if defined(__x86_64__) && VECTOR_BYTES == 64
inline VectorF exp2_nonpositive(VectorF y, float unit = 1) {
  // n is the integer below y, as in the instruction that multiplies by 2^n.
  const VectorF r = (VectorF)_mm512_reduce_ps((__m512)y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  VectorF p = r * (1.867130166e-03f * unit) + 9.017029777e-03f * unit;
  p = p * r + 5.579991266e-02f * unit;
  p = p * r + 2.401644439e-01f * unit;
  p = p * r + 6.931512952e-01f * unit;
  p = p * r + unit;
  // "Not less" holds for a NaN too.
  const __mmask16 normal = _mm512_cmp_ps_mask((__m512)y, _mm512_set1_ps(-126), _CMP_NLT_UQ);
  return (VectorF)_mm512_maskz_scalef_ps(normal, (__m512)p, (__m512)y);
}
#else
inline VectorF exp2_nonpositive(VectorF y, float unit = 1) {
  // 1.5 * 2^23 rounds its addend to an integer; 127 makes the last bits the exponent of 2^n. At
  // n = -127 these bits are those of 0.
  y = larger(VectorF{} - 127, y);
  const float shift = 12582912.0f + 127;
  VectorF rounded = y + shift;
  VectorF r = y - (rounded - shift);
  VectorF p = r * (1.32647273e-03f * unit) + 9.67151299e-03f * unit;
  p = p * r + 5.55073358e-02f * unit;
  p = p * r + 2.40222424e-01f * unit;
  p = p * r + 6.93147004e-01f * unit;
  p = p * r + unit;
  return p * (VectorF)((VectorI)rounded << 23);
}
#endif
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

// 2^y for any y, infinite where it is too large. The polynomials serve for positive y as well; with
// AVX-512 the instruction that multiplies by 2^n gives infinity, elsewhere the bits of 2^128 do.
inline VectorF exp2_any(VectorF y) {
#if defined(__x86_64__) && VECTOR_BYTES == 64
  return exp2_nonpositive(y);
#else
  return exp2_nonpositive(smaller(VectorF{} + 128, y));
#endif
}
inline VectorD exp2_any(VectorD y) { return exp2_nonpositive(smaller(VectorD{} + 1024, y)); }

inline VectorF times_log2e(VectorF x) { return x * 1.44269504088896341f; }
inline VectorD times_log2e(VectorD x) { return x * 1.44269504088896340736; }
template <class V> inline V exp_nonpositive(V x) { return exp2_nonpositive(times_log2e(x)); }

// tanh(x) near 0 needs high relative accuracy: gates may be tiny and are divided by their own sum.
// In float32 it is x P(x^2) / Q(x^2), fitted to tanh(x) by its largest relative error, which is
// 2.1e-8 up to 9.02, and 3.3e-7 with all roundings. Beyond 9.5 the quotient exceeds 1, and is cut.
inline VectorF hyperbolic_tangent(VectorF x) {
  const VectorF size = smaller(VectorF{} + 9.8f, absolute(x)), z = size * size;
  VectorF p = z * 1.33190490e-8f + 2.05834640e-5f;
  p = p * z + 3.49403359e-3f;
  p = p * z + 1.33797169e-1f;
  p = p * z + 1.0f;
  VectorF q = z * 7.76200977e-7f + 3.28309106e-4f;
  q = q * z + 2.58710682e-2f;
  q = q * z + 4.67130333e-1f;
  q = q * z + 1.0f;
  const VectorF t = smaller(VectorF{} + 1.0f, size * p / q);
  return x < 0 ? -t : t;
}

// In float64 the Taylor series serves near 0, cut where the remainder falls below the rounding
// error, and a quotient of exponentials elsewhere.
inline VectorD hyperbolic_tangent(VectorD x) {
  const VectorD z = x * x, size = absolute(x), t = exp_nonpositive(-2 * size);
  const double series[] = {
      -929569.0 / 638512875.0, 21844.0 / 6081075.0, -1382.0 / 155925.0, 62.0 / 2835.0,
      -17.0 / 315.0,           2.0 / 15.0,          -1.0 / 3.0};
  VectorD p = VectorD{} + series[0];
  for (int k = 1; k < 7; ++k) p = p * z + series[k];
  const VectorD large = (1 - t) / (1 + t);
  return size < 0.1 ? x + x * z * p : (x < 0 ? -large : large);
}

}  // namespace ISA_NAMESPACE
