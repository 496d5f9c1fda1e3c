// Gate families, one struct each; gates.py defines them in PyTorch.
//
// Each gives, for one raw gate g: an offset that is maximised over the row (for stability), the
// numerator f(g), its share |f(g)| of the normaliser, the slope f'(g), and the sign s.

#pragma once
#include "interface.h"
#include "vectors.h"

namespace ISA_NAMESPACE {

constexpr double kEpsilon = 1e-6;  // gates.py: EPSILON

template <int Family> struct Gate;

template <> struct Gate<SOFTMAX> {
  static constexpr bool offset = true, divides = true, slope_is_numerator = true;
  static constexpr double epsilon = 0;
  template <class V> static V measure(V g) { return g; }
  // One multiply-add: what rounding does to the offset is common to the row and cancels.
  template <class V> static V numerator(V g, V top) {
    return exp2_nonpositive(times_log2e(g) - times_log2e(top));
  }
  template <class V> static V share(V f) { return f; }
  template <class V> static V slope(V, V f) { return f; }
  template <class V> static V signed_state(V, V h) { return h; }
};

// sigmoid(g) e^{-top} with top = max min(g, 0): the common factor cancels, so rows of very negative
// gates keep their ratios instead of becoming 0/0.
template <> struct Gate<SIGMOID> {
  static constexpr bool offset = true, divides = true, slope_is_numerator = false;
  static constexpr double epsilon = 0;
  template <class V> static V measure(V g) { return g > 0 ? V{} : g; }
  template <class V> static V numerator(V g, V top) {
    return exp_nonpositive(measure(g) - top) / (1 + exp_nonpositive(-absolute(g)));
  }
  template <class V> static V share(V f) { return f; }
  template <class V> static V slope(V g, V f) {
    V t = exp_nonpositive(-absolute(g));
    return f * (g < 0 ? t * 0 + 1 : t) / (1 + t);
  }
  template <class V> static V signed_state(V, V h) { return h; }
};

template <> struct Gate<RELU> {
  static constexpr bool offset = false, divides = true, slope_is_numerator = false;
  static constexpr double epsilon = kEpsilon;
  template <class V> static V measure(V g) { return g; }
  template <class V> static V numerator(V g, V) { return g < 0 ? V{} : g; }
  template <class V> static V share(V f) { return f; }
  template <class V> static V slope(V g, V f) { return g > 0 ? f * 0 + 1 : f * 0; }
  template <class V> static V signed_state(V, V h) { return h; }
};

template <> struct Gate<SIGNED> {
  static constexpr bool offset = false, divides = true, slope_is_numerator = false;
  static constexpr double epsilon = kEpsilon;
  template <class V> static V measure(V g) { return g; }
  template <class V> static V numerator(V g, V) { return g; }
  template <class V> static V share(V f) { return absolute(f); }
  template <class V> static V slope(V, V f) { return f * 0 + 1; }
  template <class V> static V signed_state(V f, V h) { return f > 0 ? h : (f < 0 ? -h : h * 0); }
};

template <> struct Gate<TANH> {
  static constexpr bool offset = false, divides = true, slope_is_numerator = false;
  static constexpr double epsilon = kEpsilon;
  template <class V> static V measure(V g) { return g; }
  template <class V> static V numerator(V g, V) { return hyperbolic_tangent(g); }
  template <class V> static V share(V f) { return absolute(f); }
  template <class V> static V slope(V, V f) { return 1 - f * f; }
  template <class V> static V signed_state(V f, V h) { return f > 0 ? h : (f < 0 ? -h : h * 0); }
};

template <> struct Gate<NONE> {
  static constexpr bool offset = false, divides = false, slope_is_numerator = false;
  static constexpr double epsilon = 0;
  template <class V> static V measure(V g) { return g; }
  template <class V> static V numerator(V g, V) { return g; }
  template <class V> static V share(V f) { return f; }
  template <class V> static V slope(V, V f) { return f * 0 + 1; }
  template <class V> static V signed_state(V, V h) { return h * 0; }
};

// Transitions and inputs as they are: no normaliser and no input gate.
template <> struct Gate<GIVEN> : Gate<NONE> {};

}  // namespace ISA_NAMESPACE
