// One row of raw gates applied to a vector of states, and its closed-form backward.
//
//   blocks  h_i = sum_j p_ij h_{j,t-1} + p_i0 v_i
//           lam_t = dy_t + A_{t+1}^T lam_{t+1},  dg_ij = lam_i f'(g_ij) / S_i (u_j - s_ij h_i)
//
//   lags    h_t = sum_i p_i h_{t-i} + p_0 v_t
//           lam_t = dy_t + sum_i p_{i,t+i} lam_{t+i},  dg_i = lam f'(g_i) / S (u_i - s_i h_t)
//
// with p = f(g)/S the normalised gates of a row, S their normaliser, s the sign inside |f(g)|, and
// u the vector that the row is applied to. Nothing but raw gates, values and states is read.
//
// Everything here is compiled once per instruction set: VECTOR_BYTES gives the width of a register
// and ISA_NAMESPACE keeps the copies apart. One vector lane is one block (BD-LRU) or channel
// (H-LRU); lanes never exchange data, so results do not depend on the width or on the threads.

#pragma once
#include "gates.h"

namespace ISA_NAMESPACE {

template <int Family, bool Partial, class Element>
inline typename Compute<Element>::Vector row_top(const Element* gates, int64_t stride,
                                                 int64_t count, int64_t lanes) {
  typedef typename Compute<Element>::Vector V;
  V top = V{};
  if (Gate<Family>::offset) {
    top = Gate<Family>::measure(load<Partial>(gates, lanes));
    for (int64_t j = 1; j < count; ++j) {
      V g = Gate<Family>::measure(load<Partial>(gates + j * stride, lanes));
      top = larger(g, top);
    }
  }
  return top;
}

// sum_j p_j u(j) + p_0 v for one row of raw gates; u(j) is the j-th previous state.
template <int Family, bool Partial, class Element, class State>
inline typename Compute<Element>::Vector row_forward(const Element* gates, int64_t stride,
                                                     int64_t size, int64_t lanes,
                                                     typename Compute<Element>::Vector value,
                                                     State u) {
  typedef typename Compute<Element>::Vector V;
  typedef Gate<Family> G;
  constexpr bool gated = Family != GIVEN;
  V top = row_top<Family, Partial>(gates, stride, size + gated, lanes);
  V f = gated ? G::numerator(load<Partial>(gates + size * stride, lanes), top) : V{} + 1;
  V sum = V{} + (typename Compute<Element>::Scalar)G::epsilon + G::share(f);
  V mixed = f * value;
  for (int64_t j = 0; j < size; ++j) {
    f = G::numerator(load<Partial>(gates + j * stride, lanes), top);
    sum += G::share(f);
    mixed += f * u(j);
  }
  return G::divides ? mixed / sum : mixed;
}

// Store the gate gradients of one row, return its value's gradient, and push(j, p_j lam) into the
// adjoints of the states that it was applied to.
template <int Family, bool Partial, class Element, class State, class Push>
inline typename Compute<Element>::Vector row_backward(
    const Element* gates, int64_t stride, Element* d_gates, int64_t d_stride, bool streamed,
    int64_t size, int64_t lanes, typename Compute<Element>::Vector value,
    typename Compute<Element>::Vector h, typename Compute<Element>::Vector lam,
    typename Compute<Element>::Vector* numerators, State u, Push push) {
  typedef typename Compute<Element>::Vector V;
  typedef Gate<Family> G;
  constexpr bool gated = Family != GIVEN;
  V top = row_top<Family, Partial>(gates, stride, size + gated, lanes);
  auto put = [=](int64_t j, V gradient) {
    write<Partial>(d_gates + j * d_stride, gradient, lanes, streamed);
  };
  V scale = lam;
  if (G::divides) {
    V sum = V{} + (typename Compute<Element>::Scalar)G::epsilon;
    for (int64_t j = 0; j <= size; ++j) {
      numerators[j] = G::numerator(load<Partial>(gates + j * stride, lanes), top);
      sum += G::share(numerators[j]);
    }
    scale = lam / sum;
  }
  for (int64_t j = 0; j < size; ++j) {
    V f = G::divides ? numerators[j] : load<Partial>(gates + j * stride, lanes);
    V weight = scale * f;
    V slope = weight;
    if (!G::slope_is_numerator)
      slope = scale * G::slope(load<Partial>(gates + j * stride, lanes), f);
    put(j, slope * (u(j) - G::signed_state(f, h)));
    push(j, weight);
  }
  if (!gated) return lam;
  V f = G::divides ? numerators[size] : load<Partial>(gates + size * stride, lanes);
  V weight = scale * f;
  V slope = weight;
  if (!G::slope_is_numerator)
    slope = scale * G::slope(load<Partial>(gates + size * stride, lanes), f);
  put(size, slope * (value - G::signed_state(f, h)));
  return weight;
}

}  // namespace ISA_NAMESPACE
