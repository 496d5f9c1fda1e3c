// The exported C functions: each calls the copy of the kernels for the chosen instruction set.

#include <cstdlib>
#include <cstring>

#include "interface.h"

#define API extern "C" __attribute__((visibility("default")))

#define DECLARE(isa)                              \
  int isa##_block_forward(const Problem&);        \
  int isa##_block_backward(const Problem&);       \
  int isa##_lag_forward(const Problem&);          \
  int isa##_lag_backward(const Problem&);         \
  int isa##_low_rank_forward(const Problem&);     \
  int isa##_low_rank_backward(const Problem&);    \
  int isa##_selective_scan(const SelectiveScan&); \
  int isa##_fixed_point(const FixedPoint&);

DECLARE(baseline)
#ifdef STATEMIX_X86
DECLARE(avx2)
DECLARE(avx512)
#endif
#ifdef STATEMIX_AVX512_BF16
DECLARE(avx512_bf16)
#endif

namespace {

enum Isa { BASELINE, AVX2, AVX512, AVX512_BF16 };

// STATEMIX_CPU_ISA lowers the choice, so that every copy can be tested on one machine.
Isa choose() {
  Isa best = BASELINE;
#ifdef STATEMIX_X86
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) best = AVX2;
  if (best == AVX2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    best = AVX512;
#endif
#ifdef STATEMIX_AVX512_BF16
  if (best == AVX512 && __builtin_cpu_supports("avx512bf16")) best = AVX512_BF16;
#endif
  const char* asked = getenv("STATEMIX_CPU_ISA");
  if (asked && !strcmp(asked, "baseline")) best = BASELINE;
  if (asked && !strcmp(asked, "avx2") && best > AVX2) best = AVX2;
  if (asked && !strcmp(asked, "avx512") && best > AVX512) best = AVX512;
  return best;
}

const Isa isa = choose();

}  // namespace

// The instructions of AVX512_BF16 convert numbers, so that only kernels of bfloat16 have them.
#ifdef STATEMIX_AVX512_BF16
#define CALL_BF16(function) \
  if (isa == AVX512_BF16 && p->element == BFLOAT16) return avx512_bf16_##function(*p);
#else
#define CALL_BF16(function)
#endif
#ifdef STATEMIX_X86
#define EXPORT(function)                             \
  API int statemix_##function(const Problem* p) {    \
    CALL_BF16(function)                              \
    if (isa >= AVX512) return avx512_##function(*p); \
    if (isa == AVX2) return avx2_##function(*p);     \
    return baseline_##function(*p);                  \
  }
#else
#define EXPORT(function) \
  API int statemix_##function(const Problem* p) { return baseline_##function(*p); }
#endif

EXPORT(block_forward)
EXPORT(block_backward)
EXPORT(lag_forward)
EXPORT(lag_backward)
EXPORT(low_rank_forward)
EXPORT(low_rank_backward)

// These have no kernels of bfloat16.
#ifdef STATEMIX_X86
#define EXPORT_WIDE(function, argument)              \
  API int statemix_##function(const argument* p) {   \
    if (isa >= AVX512) return avx512_##function(*p); \
    if (isa == AVX2) return avx2_##function(*p);     \
    return baseline_##function(*p);                  \
  }
#else
#define EXPORT_WIDE(function, argument) \
  API int statemix_##function(const argument* p) { return baseline_##function(*p); }
#endif

EXPORT_WIDE(selective_scan, SelectiveScan)
EXPORT_WIDE(fixed_point, FixedPoint)

API int64_t statemix_interface_version() { return kInterfaceVersion; }

API const char* statemix_isa() {
  static const char* const names[] = {"baseline", "avx2", "avx512", "avx512_bf16"};
  return names[isa];
}
