// The kernels for one instruction set, and the choice of a template for each problem. A copy made
// with ONLY_BFLOAT16 has those of one dtype.

#include "block_scan.h"
#include "channel_scan.h"
#include "fixed_point.h"
#include "lag_scan.h"
#include "low_rank_scan.h"
#include "reflect_scan.h"
#include "selective_scan.h"

#define CONCATENATE_(a, b) a##b
#define CONCATENATE(a, b) CONCATENATE_(a, b)

namespace ISA_NAMESPACE {

struct BlockForward {
  template <int Family, int Size, bool Partial, class Element>
  static int call(const Problem& p, int64_t width) {
    return run(block_forward<Family, Size, Partial, Element>, p, width, sizeof(Element));
  }
};
struct BlockBackward {
  template <int Family, int Size, bool Partial, class Element>
  static int call(const Problem& p, int64_t width) {
    return run(block_backward<Family, Size, Partial, Element>, p, width, sizeof(Element));
  }
};
struct ChannelForward {
  template <int Family, int Size, bool Partial, class Element>
  static int call(const Problem& p, int64_t width) {
    return run(channel_forward<Family, Size, Partial, Element>, p, width, sizeof(Element));
  }
};
struct ChannelBackward {
  template <int Family, int Size, bool Partial, class Element>
  static int call(const Problem& p, int64_t width) {
    return run(channel_backward<Family, Size, Partial, Element>, p, width, sizeof(Element));
  }
};
struct ReflectForward {
  template <int Size, bool Partial, class Element>
  static int call(const Problem& p, int64_t width) {
    return run(reflect_forward<Size, Partial, Element>, p, width, sizeof(Element));
  }
};
struct ReflectBackward {
  template <int Size, bool Partial, class Element>
  static int call(const Problem& p, int64_t width) {
    return run(reflect_backward<Size, Partial, Element>, p, width, sizeof(Element));
  }
};
struct LagForward {
  template <int Family, int Size, bool Partial, class Element>
  static int call(const Problem& p, int64_t width) {
    return run(lag_forward<Family, Size, Partial, Element>, p, width, sizeof(Element));
  }
};
struct LagBackward {
  template <int Family, int Size, bool Partial, class Element>
  static int call(const Problem& p, int64_t width) {
    return run(lag_backward<Family, Size, Partial, Element>, p, width, sizeof(Element));
  }
};
struct LowRankForward {
  template <class Element> static int call(const Problem& p, int64_t width) {
    return run(low_rank_forward<Element>, p, width, sizeof(Element), p.size);
  }
};
struct LowRankBackward {
  template <class Element> static int call(const Problem& p, int64_t width) {
    return run(low_rank_backward<Element>, p, width, sizeof(Element), p.size);
  }
};

// Small sizes are unrolled for the families most used in training; all other cases loop.
template <class Kernel, int Family, class Element> int by_size(const Problem& p) {
  constexpr int64_t width = Lanes<typename Compute<Element>::Scalar>::count;
  if (p.blocks < width) return Kernel::template call<Family, 0, true, Element>(p, width);
  if (Family == SOFTMAX) {
    switch (p.size) {
      case 1: return Kernel::template call<SOFTMAX, 1, false, Element>(p, width);
      case 2: return Kernel::template call<SOFTMAX, 2, false, Element>(p, width);
      case 3: return Kernel::template call<SOFTMAX, 3, false, Element>(p, width);
      case 4: return Kernel::template call<SOFTMAX, 4, false, Element>(p, width);
      case 5: return Kernel::template call<SOFTMAX, 5, false, Element>(p, width);
      case 6: return Kernel::template call<SOFTMAX, 6, false, Element>(p, width);
      case 8: return Kernel::template call<SOFTMAX, 8, false, Element>(p, width);
    }
  }
  return Kernel::template call<Family, 0, false, Element>(p, width);
}

template <class Kernel, class Element> int reflected(const Problem& p) {
  constexpr int64_t width = Lanes<typename Compute<Element>::Scalar>::count;
  if (p.blocks < width) return Kernel::template call<0, true, Element>(p, width);
  switch (p.size) {
    case 2: return Kernel::template call<2, false, Element>(p, width);
    case 3: return Kernel::template call<3, false, Element>(p, width);
    case 4: return Kernel::template call<4, false, Element>(p, width);
    case 5: return Kernel::template call<5, false, Element>(p, width);
    case 6: return Kernel::template call<6, false, Element>(p, width);
    case 8: return Kernel::template call<8, false, Element>(p, width);
  }
  return Kernel::template call<0, false, Element>(p, width);
}

template <class Kernel, class Element> int by_family(const Problem& p) {
  switch (p.family) {
    case SOFTMAX: return by_size<Kernel, SOFTMAX, Element>(p);
    case SIGMOID: return by_size<Kernel, SIGMOID, Element>(p);
    case RELU: return by_size<Kernel, RELU, Element>(p);
    case SIGNED: return by_size<Kernel, SIGNED, Element>(p);
    case TANH: return by_size<Kernel, TANH, Element>(p);
    case NONE: return by_size<Kernel, NONE, Element>(p);
    case GIVEN: return by_size<Kernel, GIVEN, Element>(p);
  }
  return UNKNOWN;
}

template <class Kernel> int by_element(const Problem& p) {
  switch (p.element) {
#ifndef ONLY_BFLOAT16
    case FLOAT32: return by_family<Kernel, float>(p);
    case FLOAT64: return by_family<Kernel, double>(p);
#endif
    case BFLOAT16: return by_family<Kernel, bfloat16>(p);
  }
  return UNKNOWN;
}

template <class Kernel> int reflected_by_element(const Problem& p) {
  switch (p.element) {
#ifndef ONLY_BFLOAT16
    case FLOAT32: return reflected<Kernel, float>(p);
    case FLOAT64: return reflected<Kernel, double>(p);
#endif
    case BFLOAT16: return reflected<Kernel, bfloat16>(p);
  }
  return UNKNOWN;
}

template <class Kernel, class Element> int low_rank(const Problem& p) {
  if (p.gates_per_row / 2 < 1 || p.gates_per_row / 2 > kMostRank) return UNKNOWN;
  return Kernel::template call<Element>(p, Lanes<typename Compute<Element>::Scalar>::count);
}

template <class Kernel> int low_rank_by_element(const Problem& p) {
  switch (p.element) {
#ifndef ONLY_BFLOAT16
    case FLOAT32: return low_rank<Kernel, float>(p);
    case FLOAT64: return low_rank<Kernel, double>(p);
#endif
    case BFLOAT16: return low_rank<Kernel, bfloat16>(p);
  }
  return UNKNOWN;
}

}  // namespace ISA_NAMESPACE

int CONCATENATE(ISA_NAMESPACE, _block_forward)(const Problem& p) {
  if (p.family == HOUSEHOLDER)
    return ISA_NAMESPACE::reflected_by_element<ISA_NAMESPACE::ReflectForward>(p);
  if (p.channels) return ISA_NAMESPACE::by_element<ISA_NAMESPACE::ChannelForward>(p);
  return ISA_NAMESPACE::by_element<ISA_NAMESPACE::BlockForward>(p);
}
int CONCATENATE(ISA_NAMESPACE, _block_backward)(const Problem& p) {
  if (p.family == HOUSEHOLDER)
    return ISA_NAMESPACE::reflected_by_element<ISA_NAMESPACE::ReflectBackward>(p);
  if (p.channels) return ISA_NAMESPACE::by_element<ISA_NAMESPACE::ChannelBackward>(p);
  return ISA_NAMESPACE::by_element<ISA_NAMESPACE::BlockBackward>(p);
}
#ifndef ONLY_BFLOAT16
int CONCATENATE(ISA_NAMESPACE, _selective_scan)(const SelectiveScan& p) {
  switch (p.element) {
    case FLOAT32: return ISA_NAMESPACE::selective_scan<float>(p);
    case FLOAT64: return ISA_NAMESPACE::selective_scan<double>(p);
  }
  return UNKNOWN;
}
int CONCATENATE(ISA_NAMESPACE, _fixed_point)(const FixedPoint& p) {
  switch (p.element) {
    case FLOAT32: return ISA_NAMESPACE::fixed_point<float>(p);
    case FLOAT64: return ISA_NAMESPACE::fixed_point<double>(p);
  }
  return UNKNOWN;
}
#endif
int CONCATENATE(ISA_NAMESPACE, _lag_forward)(const Problem& p) {
  return ISA_NAMESPACE::by_element<ISA_NAMESPACE::LagForward>(p);
}
int CONCATENATE(ISA_NAMESPACE, _lag_backward)(const Problem& p) {
  return ISA_NAMESPACE::by_element<ISA_NAMESPACE::LagBackward>(p);
}
int CONCATENATE(ISA_NAMESPACE, _low_rank_forward)(const Problem& p) {
  return ISA_NAMESPACE::low_rank_by_element<ISA_NAMESPACE::LowRankForward>(p);
}
int CONCATENATE(ISA_NAMESPACE, _low_rank_backward)(const Problem& p) {
  return ISA_NAMESPACE::low_rank_by_element<ISA_NAMESPACE::LowRankBackward>(p);
}
