// Gate families, one struct each; gates.py defines them in PyTorch.
//
// Families with `scans` first scan a row for its largest measure, which determines the row's Scale.
// Numerators and epsilon are then expressed in units of the row:
//
//   softmax, sigmoid   f(g / T) e^{-top / T}, which is finite and not 0 at the top
//   relu, signed       f(g) times a factor that brings the largest entry to at most 1
//   tanh, none         f(g / T)
//
// Each family defines the numerator f, its share |f| of the normaliser, the slope df/dg, and s h
// (`signed_state`) with s the sign inside |f|.

#pragma once
#include "interface.h"
#include "vectors.h"

namespace ISA_NAMESPACE {

constexpr double kEpsilon = 1e-6;  // gates.py: EPSILON

// Constants of one row. `factor` multiplies raw gates, or half their distance from the top;
// `slope` multiplies the derivative with respect to a raw gate. `unit` multiplies the numerators of
// families measured from the top.
template <class V> struct Scale {
  V half_top, factor, slope;
  V shrunk = V{};  // e^{top / T}, for sigmoid
  typename ScalarOf<V>::type unit = 1;
};

// Constants of all rows of a problem. 1 / T may overflow, so factors are clamped to finite values:
// zero times infinity is NaN.
template <class S> struct Rows {
  S inverse, exponent;  // 1 / T, and 2 log2(e) / T
  // Powers of two that keep weighted sums finite: the exponentials of a row, times their unit, add
  // up to at most 1. Other numerators are less than 4, so they add up to less than 1 / part.
  S unit = 1;
  S part;
  S lowered = 1;  // a power of two near 1 / T, at most 1
  explicit Rows(const Problem& problem) {
    while (unit * (problem.size + 1) > 1) unit /= 2;
    part = unit / 4;
    inverse = finite(problem.inverse_temperature);
    exponent = finite(problem.inverse_temperature * 2.88539008177792681472);
    if (inverse < 1) lowered = std::ldexp((S)1, std::ilogb(inverse));
  }
  // A NaN stays one.
  static S finite(double x) {
    const double least = std::numeric_limits<S>::min(), most = std::numeric_limits<S>::max();
    return (S)(x < least ? least : x > most ? most : x);
  }
};

// unit * e^{(g - top) / T} for g <= top. Both are halved because g - top may overflow. The
// subtraction comes before the scaling: a rounding error of a scaled gate would be an error of an
// exponent.
template <class V> inline V exponential(V g, const Scale<V>& scale) {
  return exp2_nonpositive((g * (typename ScalarOf<V>::type)0.5 - scale.half_top) * scale.factor,
                          scale.unit);
}

template <int Family> struct Gate;

// Families whose gates are measured from the top of their row.
struct FromTop {
  static constexpr bool scans = true, divides = true, has_unit = true, slope_is_kept = false;
  static constexpr double epsilon = 0;
  template <class V, class S> static Scale<V> scale(V top, const Rows<S>& rows) {
    return {top * (S)0.5, V{} + rows.exponent, V{} + rows.inverse};
  }
  template <class V> static V share(V f) { return f; }
  template <class V> static V signed_state(V, V h) { return h; }
};

// Families whose gates are multiplied by the smaller of 1 / T and a power of two near the
// reciprocal of the row's largest entry. The factor never rounds to zero; then numerators reach 4.
struct InUnits {
  static constexpr bool scans = true, divides = true, has_unit = false, slope_is_numerator = false,
                        slope_is_kept = false;
  static constexpr double epsilon = kEpsilon;
  template <class V, class S> static Scale<V> scale(V top, const Rows<S>& rows) {
    V factor = power_of_two(1 / top);  // exact, so that it changes no ratio
    factor = factor < rows.inverse ? factor : V{} + rows.inverse;
    factor = larger(factor, V{} + std::numeric_limits<S>::min());
    return {V{}, factor, factor};
  }
  template <class V> static V slope(V, V f, const Scale<V>& scale) { return scale.slope; }
};

// Families that use f(g / T) unscaled.
struct AsGiven {
  static constexpr bool scans = false, has_unit = false, slope_is_numerator = false,
                        slope_is_kept = false;
  template <class V, class S> static Scale<V> scale(V, const Rows<S>& rows) {
    return {V{}, V{} + rows.inverse, V{} + rows.inverse};
  }
  template <class V> static V measure(V g) { return g; }
};

template <> struct Gate<SOFTMAX> : FromTop {
  static constexpr bool slope_is_numerator = true;
  template <class V> static V measure(V g) { return g; }
  template <class V> static V numerator(V g, const Scale<V>& scale) {
    return exponential(g, scale);
  }
};

// sigmoid(g) e^{-top} = 1 / (e^top + e^{top - g}) with top = max min(g, 0): the common factor
// cancels, so rows of very negative gates keep their ratios instead of becoming 0/0.
template <> struct Gate<SIGMOID> : FromTop {
  static constexpr bool slope_is_numerator = false, slope_is_kept = true;
  template <class V, class S> static Scale<V> scale(V top, const Rows<S>& rows) {
    Scale<V> scale = FromTop::scale(top, rows);
    scale.shrunk = exp2_nonpositive(scale.half_top * scale.factor);
    return scale;
  }
  template <class V> static V measure(V g) { return g > 0 ? V{} : g; }
  template <class V> static V numerator(V g, const Scale<V>& scale) {
    V slope;
    return numerator_and_slope(g, scale, &slope);
  }
  template <class V> static V numerator_and_slope(V g, const Scale<V>& scale, V* slope) {
    typedef typename ScalarOf<V>::type S;
    const V e = exp2_any((scale.half_top - g * (S)0.5) * scale.factor);
    const V f = scale.unit / (scale.shrunk + e);
    // The share of the second term is 1 - sigmoid, but 0 where the term is infinite.
    *slope = smaller(V{} + std::numeric_limits<S>::max(), e) * f * f * scale.slope / scale.unit;
    return f;
  }
};

template <> struct Gate<RELU> : InUnits {
  template <class V> static V measure(V g) { return g < 0 ? V{} : g; }
  template <class V> static V numerator(V g, const Scale<V>& scale) {
    return measure(g) * scale.factor;
  }
  template <class V> static V share(V f) { return f; }
  template <class V> static V slope(V g, V f, const Scale<V>& scale) {
    return g > 0 ? scale.slope : f * 0;
  }
  template <class V> static V signed_state(V, V h) { return h; }
};

template <> struct Gate<SIGNED> : InUnits {
  template <class V> static V measure(V g) { return absolute(g); }
  template <class V> static V numerator(V g, const Scale<V>& scale) { return g * scale.factor; }
  template <class V> static V share(V f) { return absolute(f); }
  template <class V> static V signed_state(V f, V h) { return f > 0 ? h : (f < 0 ? -h : h * 0); }
};

template <> struct Gate<TANH> : AsGiven {
  static constexpr bool divides = true;
  static constexpr double epsilon = kEpsilon;
  template <class V> static V numerator(V g, const Scale<V>& scale) {
    return hyperbolic_tangent(g * scale.factor);
  }
  template <class V> static V share(V f) { return absolute(f); }
  template <class V> static V slope(V, V f, const Scale<V>& scale) {
    return (1 - f * f) * scale.slope;
  }
  template <class V> static V signed_state(V f, V h) { return f > 0 ? h : (f < 0 ? -h : h * 0); }
};

template <> struct Gate<NONE> : AsGiven {
  static constexpr bool divides = false;
  static constexpr double epsilon = 0;
  template <class V> static V numerator(V g, const Scale<V>& scale) { return g * scale.factor; }
  template <class V> static V share(V f) { return f; }
  template <class V> static V slope(V, V, const Scale<V>& scale) { return scale.slope; }
  template <class V> static V signed_state(V, V h) { return h * 0; }
};

// Given coefficients and inputs: no temperature, no normaliser and no input gate.
template <> struct Gate<GIVEN> : Gate<NONE> {
  template <class V> static V numerator(V g, const Scale<V>&) { return g; }
  template <class V> static V slope(V, V f, const Scale<V>&) { return f * 0 + 1; }
};

}  // namespace ISA_NAMESPACE
