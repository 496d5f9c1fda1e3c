// One row of raw gates applied to a vector of states, and its closed-form backward.
//
//   blocks  h_i = sum_j p_ij h_{j,t-1} + p_i0 v_i
//           lam_t = dy_t + A_{t+1}^T lam_{t+1},  dg_ij = lam_i f'(g_ij) / S_i (u_j - s_ij h_i)
//
//   lags    h_t = sum_i p_i h_{t-i} + p_0 v_t
//           lam_t = dy_t + sum_i p_{i,t+i} lam_{t+i},  dg_i = lam f'(g_i) / S (u_i - s_i h_t)
//
// with p = f(g)/S the normalised gates of a row, S their normaliser, s the sign inside |f(g)|, and
// u the vector that the row is applied to. The backward reads only raw gates, values and states.
//
// This code is compiled once per instruction set: VECTOR_BYTES is the width of a register, and
// ISA_NAMESPACE separates the copies. One vector lane is one block (BD-LRU) or channel (H-LRU).
// Lanes never exchange data, so results of an instruction set do not depend on the number of
// threads.

#pragma once
#include "gates.h"

namespace ISA_NAMESPACE {

template <int Family, bool Partial, class Element>
inline Scale<typename Compute<Element>::Vector> row_scale(
    const Element* gates, int64_t stride, int64_t count, int64_t lanes,
    const Rows<typename Compute<Element>::Scalar>& rows) {
  typedef typename Compute<Element>::Vector V;
  V top = V{};
  if (Gate<Family>::scans) {
    top = Gate<Family>::measure(load<Partial>(gates, lanes));
    for (int64_t j = 1; j < count; ++j) {
      V g = Gate<Family>::measure(load<Partial>(gates + j * stride, lanes));
      top = larger(g, top);
    }
  }
  return Gate<Family>::scale(top, rows);
}

// Epsilon in units of the row. Epsilon itself is defined for gates divided by the temperature.
template <int Family, class V, class S>
inline V row_epsilon(const Scale<V>& scale, const Rows<S>& rows) {
  if (Gate<Family>::epsilon == 0) return V{};
  return scale.factor / rows.inverse * (S)Gate<Family>::epsilon;
}

// sum_j p_j u(j) + p_0 v for one row of raw gates; u(j) is the j-th previous state. Always inlined,
// so that the scaled coefficients of the exponential are computed once per problem.
template <int Family, bool Partial, class Element, class State>
inline __attribute__((always_inline)) typename Compute<Element>::Vector row_forward(
    const Element* gates, int64_t stride, int64_t size, int64_t lanes,
    const Rows<typename Compute<Element>::Scalar>& rows, typename Compute<Element>::Vector value,
    State u) {
  typedef typename Compute<Element>::Scalar S;
  typedef typename Compute<Element>::Vector V;
  typedef Gate<Family> G;
  constexpr bool gated = Family != GIVEN;
  Scale<V> scale = row_scale<Family, Partial>(gates, stride, size + gated, lanes, rows);
  // The weighted sum may overflow although the weighted mean is finite: scale it down, either the
  // numerators, at no cost, or the values.
  constexpr bool shrinks = G::divides && !G::has_unit;
  if (G::has_unit) scale.unit = rows.unit;
  V f = gated ? G::numerator(load<Partial>(gates + size * stride, lanes), scale) : V{} + 1;
  V sum = row_epsilon<Family>(scale, rows) + G::share(f);
  V mixed = shrinks ? f * (value * rows.part) : f * value;
  for (int64_t j = 0; j < size; ++j) {
    f = G::numerator(load<Partial>(gates + j * stride, lanes), scale);
    sum += G::share(f);
    mixed += shrinks ? f * (u(j) * rows.part) : f * u(j);
  }
  return G::divides ? mixed / (shrinks ? sum * rows.part : sum) : mixed;
}

// Store the gate gradients of one row, add p_j lam to the adjoint of its j-th previous state by
// push(j, p_j lam), and return the gradient of its value. `numerators` is room for 2 (size + 1).
template <int Family, bool Partial, class Element, class State, class Push>
inline typename Compute<Element>::Vector row_backward(
    const Element* gates, int64_t stride, Element* d_gates, int64_t d_stride, bool streamed,
    HalfU* halves, int64_t size, int64_t lanes, const Rows<typename Compute<Element>::Scalar>& rows,
    typename Compute<Element>::Vector value, typename Compute<Element>::Vector h,
    typename Compute<Element>::Vector lam, typename Compute<Element>::Vector* numerators, State u,
    Push push) {
  typedef typename Compute<Element>::Scalar S;
  typedef typename Compute<Element>::Vector V;
  typedef Gate<Family> G;
  constexpr bool gated = Family != GIVEN;
  const Scale<V> scale = row_scale<Family, Partial>(gates, stride, size + gated, lanes, rows);
  // u and h are measured in a unit, because u - h may overflow although the gradient is finite. For
  // softmax f' is f / T, and the unit has the size of 1 / T if that is below 1.
  const S unit = G::slope_is_numerator ? rows.lowered / 2 : (S)0.5;
  const V mean = h * unit;
  V* slopes = numerators + size + 1;
  V common = lam;  // lam / S
  if (G::divides) {
    V sum = row_epsilon<Family>(scale, rows);
    for (int64_t j = 0; j <= size; ++j) {
      const V g = load<Partial>(gates + j * stride, lanes);
      if constexpr (G::slope_is_kept)
        numerators[j] = G::numerator_and_slope(g, scale, slopes + j);
      else
        numerators[j] = G::numerator(g, scale);
      sum += G::share(numerators[j]);
    }
    common = lam / sum;
  }
  // For one gate applied to x: store its gradient and return p lam.
  auto differentiate = [&](int64_t j, V x) {
    V g = load<Partial>(gates + j * stride, lanes);
    V f = G::divides ? numerators[j] : G::numerator(g, scale);
    V difference = x * unit - G::signed_state(f, mean);
    V gradient;  // of the gate
    if constexpr (G::slope_is_numerator) {
      gradient = common * f * difference * (rows.inverse / unit);
    } else {
      // A slope may be so small that lam / S times it is not a normal number, or so large that the
      // product overflows, which must not meet a difference of zero.
      V slope;
      if constexpr (G::slope_is_kept)
        slope = slopes[j];
      else
        slope = G::slope(g, f, scale);
      gradient = slope < 1 ? common * (slope * difference) : common * difference * slope;
      gradient *= 1 / unit;
    }
    write<Partial>(d_gates + j * d_stride, gradient, lanes, streamed, halves + j);
    // Computed here, because the compiler fuses a product with the sum that it is added to only if
    // no branch lies between them: results must not depend on `streamed`.
    return common * f;
  };
  for (int64_t j = 0; j < size; ++j) push(j, differentiate(j, u(j)));
  return gated ? differentiate(size, value) : lam;
}

}  // namespace ISA_NAMESPACE
