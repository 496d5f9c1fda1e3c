// h_ic = sum_j p_ij h_{jc,t-1} + p_i0 v_ic for dense blocks whose C channels share the gates,
// forward and adjoint.
//
// A row of gates is normalised once per step and then applied to all channels. The gradients of
// gates are sums over channels:
//
//   dg_ij = f'(g_ij) / S_i sum_c lam_ic (u_jc - s_ij h_ic)

#pragma once
#include "rows.h"
#include "work.h"

namespace ISA_NAMESPACE {

// The numerators of a row of gates for the forward pass, the input gate last, and their divisor.
template <int Family, bool Partial, class Element, class V>
inline __attribute__((always_inline)) V
weigh_row(const Element* gates, int64_t stride, int64_t size, int64_t lanes,
          const Rows<typename Compute<Element>::Scalar>& rows, V* numerators) {
  typedef Gate<Family> G;
  constexpr bool gated = Family != GIVEN;
  Scale<V> scale = row_scale<Family, Partial>(gates, stride, size + gated, lanes, rows);
  if (G::has_unit) scale.unit = rows.unit;
  V sum = row_epsilon<Family>(scale, rows);
  if (gated) {
    numerators[size] = G::numerator(load<Partial>(gates + size * stride, lanes), scale);
    sum += G::share(numerators[size]);
  }
  for (int64_t j = 0; j < size; ++j) {
    numerators[j] = G::numerator(load<Partial>(gates + j * stride, lanes), scale);
    sum += G::share(numerators[j]);
  }
  return sum;
}

template <int Family, int Size, bool Partial, class Element>
bool channel_forward(const Problem& problem, const Work& work) {
  typedef typename Compute<Element>::Scalar S;
  typedef typename Compute<Element>::Vector V;
  typedef Gate<Family> G;
  constexpr bool gated = Family != GIVEN, shrinks = G::divides && !G::has_unit;
  const int64_t size = Size ? Size : problem.size, blocks = problem.blocks;
  const int64_t channels = problem.channels, entries = size * channels, row = size + gated;
  const Rows<S> rows(problem);
  Scratch<V> scratch((work.tiles + 2) * entries + row);
  if (!scratch.data) return false;
  V* state = scratch.data;
  V* before = state + work.tiles * entries;
  HalfU* halves = (HalfU*)(before + entries + row);
  V unrolled[Size + 1];  // in registers
  V* numerators = Size ? unrolled : before + entries;

  const S* initial = (const S*)problem.initial_state + work.sequence * entries * blocks;
  load_state<Partial>(initial, state, work, entries);

  for (int64_t t = work.start; t < work.stop; ++t) {
    const Element* gates =
        (const Element*)problem.gates + work.batch * problem.gates_batch + t * problem.gates_time;
    const Element* values = (const Element*)problem.values + work.batch * problem.values_batch +
                            t * problem.values_time;
    const int64_t step = work.batch * problem.length + t;
    Element* states = (Element*)problem.states + step * entries * blocks;
    S* wide_states =
        problem.wide_states ? (S*)problem.wide_states + step * entries * blocks : nullptr;
    LaterGates<Element> later(gates + work.ahead * problem.gates_time, problem, work);
    for (int64_t k = 0; k < work.tiles; ++k) {
      const int64_t lane = work.lane(k);
      V* h = state + k * entries;
      for (int64_t j = 0; j < entries; ++j) before[j] = h[j];
      for (int64_t i = 0; i < size; ++i) {
        later.prefetch_some(i, lane, row);
        const V sum =
            weigh_row<Family, Partial>(gates + i * problem.gates_row + lane, problem.gates_gate,
                                       size, work.lanes, rows, numerators);
        for (int64_t c = 0; c < channels; ++c) {
          const Element* from = values + i * problem.values_row + c * problem.values_channel + lane;
          prefetch(from + work.ahead * problem.values_time);
          const V value = load<Partial>(from, work.lanes);
          V mixed = gated ? numerators[size] * (shrinks ? value * rows.part : value) : value;
          for (int64_t j = 0; j < size; ++j) {
            const V u = before[j * channels + c];
            mixed += numerators[j] * (shrinks ? u * rows.part : u);
          }
          if (G::divides) mixed /= shrinks ? sum * rows.part : sum;
          const int64_t entry = i * channels + c;
          h[entry] = mixed;
          write<Partial>(states + entry * blocks + lane, mixed, work.lanes, work.streamed,
                         halves + entry);
          if (wide_states)
            write<Partial>(wide_states + entry * blocks + lane, mixed, work.lanes, work.streamed,
                           halves);
        }
      }
    }
  }

  S* final = (S*)problem.final_state + work.sequence * entries * blocks;
  store_state<Partial>(final, state, work, entries);
  return true;
}

template <int Family, int Size, bool Partial, class Element>
bool channel_backward(const Problem& problem, const Work& work) {
  typedef typename Compute<Element>::Scalar S;
  typedef typename Compute<Element>::Vector V;
  typedef Gate<Family> G;
  constexpr bool gated = Family != GIVEN;
  const int64_t size = Size ? Size : problem.size, blocks = problem.blocks;
  const int64_t channels = problem.channels, entries = size * channels, row = size + gated;
  const Rows<S> rows(problem);
  // As in row_backward, states are measured in a unit, because their difference may overflow.
  const S unit = G::slope_is_numerator ? rows.lowered / 2 : (S)0.5;
  Scratch<V> scratch((work.tiles + 2) * entries + (size + 4) * row);
  if (!scratch.data) return false;
  V* carry = scratch.data;  // A_{t+1}^T lam_{t+1}
  V* sums = carry + work.tiles * entries;
  V unrolled[3 * (Size + 1)];  // in registers
  V* numerators = Size ? unrolled : sums + entries;
  V* slopes = numerators + row;
  V* gradients = slopes + row;
  HalfU* halves = (HalfU*)(sums + entries + 3 * row);

  const S* d_final = (const S*)problem.d_final_state + work.sequence * entries * blocks;
  load_state<Partial>(d_final, carry, work, entries);

  const S* initial = (const S*)problem.initial_state + work.sequence * entries * blocks;
  for (int64_t t = work.stop - 1; t >= work.start; --t) {
    const int64_t step = work.batch * problem.length + t;
    const Element* gates =
        (const Element*)problem.gates + work.batch * problem.gates_batch + t * problem.gates_time;
    const Element* values = (const Element*)problem.values + work.batch * problem.values_batch +
                            t * problem.values_time;
    const Element* d_states = (const Element*)problem.d_states +
                              work.batch * problem.d_states_batch + t * problem.d_states_time;
    const S* states = (const S*)problem.states + step * entries * blocks;
    const S* previous = t > work.start ? states - entries * blocks : initial;
    Element* d_gates = (Element*)problem.d_gates + step * size * row * blocks;
    Element* d_values = (Element*)problem.d_values + step * entries * blocks;
    LaterGates<Element> later(gates - work.ahead * problem.gates_time, problem, work);
    for (int64_t k = 0; k < work.tiles; ++k) {
      const int64_t lane = work.lane(k);
      for (int64_t j = 0; j < entries; ++j) sums[j] = V{};
      for (int64_t i = 0; i < size; ++i) {
        later.prefetch_some(i, lane, row);
        const Element* from = gates + i * problem.gates_row + lane;
        const Scale<V> scale =
            row_scale<Family, Partial>(from, problem.gates_gate, row, work.lanes, rows);
        V sum = row_epsilon<Family>(scale, rows);
        for (int64_t j = 0; j < row; ++j) {
          const V g = load<Partial>(from + j * problem.gates_gate, work.lanes);
          if constexpr (G::slope_is_kept) {
            numerators[j] = G::numerator_and_slope(g, scale, slopes + j);
          } else {
            numerators[j] = G::numerator(g, scale);
            if constexpr (!G::slope_is_numerator) slopes[j] = G::slope(g, numerators[j], scale);
          }
          sum += G::share(numerators[j]);
          gradients[j] = V{};
        }
        for (int64_t c = 0; c < channels; ++c) {
          const int64_t entry = i * channels + c;
          const Element* value =
              values + i * problem.values_row + c * problem.values_channel + lane;
          const Element* d_state =
              d_states + i * problem.d_states_row + c * problem.d_states_channel + lane;
          prefetch(value - work.ahead * problem.values_time);
          prefetch(d_state - work.ahead * problem.d_states_time);
          prefetch(states + (entry - (work.ahead + 1) * entries) * blocks + lane);
          const V lam = carry[k * entries + entry] + load<Partial>(d_state, work.lanes);
          const V mean = load<Partial>(states + entry * blocks + lane, work.lanes) * unit;
          const V common = G::divides ? lam / sum : lam;
          // Apply gate j to x: add to its gradient, and return p lam.
          auto differentiate = [&](int64_t j, V x) {
            const V difference = x * unit - G::signed_state(numerators[j], mean);
            const V weighted = common * numerators[j];
            if constexpr (G::slope_is_numerator) {
              gradients[j] += weighted * difference;
            } else {
              // As in row_backward, no product may leave the range of normal numbers too early.
              gradients[j] += slopes[j] < 1 ? common * (slopes[j] * difference)
                                            : common * difference * slopes[j];
            }
            return weighted;
          };
          for (int64_t j = 0; j < size; ++j) {
            const int64_t source = j * channels + c;
            sums[source] +=
                differentiate(j, load<Partial>(previous + source * blocks + lane, work.lanes));
          }
          const V d_value = gated ? differentiate(size, load<Partial>(value, work.lanes)) : lam;
          write<Partial>(d_values + entry * blocks + lane, d_value, work.lanes, work.streamed,
                         halves + size * row + entry);
        }
        const S factor = G::slope_is_numerator ? rows.inverse / unit : 1 / unit;
        for (int64_t j = 0; j < row; ++j)
          write<Partial>(d_gates + (i * row + j) * blocks + lane, gradients[j] * factor, work.lanes,
                         work.streamed, halves + i * row + j);
      }
      for (int64_t j = 0; j < entries; ++j) carry[k * entries + j] = sums[j];
    }
  }

  S* d_initial = (S*)problem.d_initial_state + work.sequence * entries * blocks;
  store_state<Partial>(d_initial, carry, work, entries);
  return true;
}

}  // namespace ISA_NAMESPACE
