// h_t = sum_i p_i h_{t-i} + p_0 v_t for channels with a buffer of m lags, forward and adjoint.
//
// The last m states are in a ring, so that none of them moves from step to step. Two adjacent
// copies of the ring hold them in order wherever the newest one lies.

#pragma once
#include "rows.h"
#include "work.h"

namespace ISA_NAMESPACE {

template <int Family, int Size, bool Partial, class Element>
bool lag_forward(const Problem& problem, const Work& work) {
  typedef typename Compute<Element>::Scalar S;
  typedef typename Compute<Element>::Vector V;
  const int64_t size = Size ? Size : problem.size, channels = problem.blocks;
  const int64_t row = size + (Family != GIVEN);
  const Rows<S> rows(problem);
  Scratch<V> scratch(work.tiles * 2 * size + 1);
  if (!scratch.data) return false;
  V* rings = scratch.data;  // lag i of the step is at [slot - i]
  HalfU* half = (HalfU*)(rings + work.tiles * 2 * size);

  const S* initial = (const S*)problem.initial_state + work.sequence * size * channels;
  for (int64_t k = 0; k < work.tiles; ++k)
    for (int64_t i = 1; i <= size; ++i) {
      V lag = load<Partial>(initial + (i - 1) * channels + work.lane(k), work.lanes);
      rings[k * 2 * size + size - i] = rings[k * 2 * size + 2 * size - i] = lag;
    }

  int64_t slot = size;  // slot of the next step, in size .. 2 * size - 1
  for (int64_t t = work.start; t < work.stop; ++t) {
    const Element* gates =
        (const Element*)problem.gates + work.batch * problem.gates_batch + t * problem.gates_time;
    const Element* values = (const Element*)problem.values + work.batch * problem.values_batch +
                            t * problem.values_time;
    const int64_t step = work.batch * problem.length + t;
    Element* states = (Element*)problem.states + step * channels;
    S* wide_states = problem.wide_states ? (S*)problem.wide_states + step * channels : nullptr;
    LaterGates<Element> later(gates + work.ahead * problem.gates_time, problem, work);
    for (int64_t k = 0; k < work.tiles; ++k) {
      const int64_t lane = work.lane(k);
      V* ring = rings + k * 2 * size;
      prefetch(values + work.ahead * problem.values_time + lane);
      later.prefetch_some(0, lane, row);
      const V* newest = ring + slot - 1;
      V mixed = row_forward<Family, Partial>(gates + lane, problem.gates_gate, size, work.lanes,
                                             rows, load<Partial>(values + lane, work.lanes),
                                             [newest](int64_t j) { return newest[-j]; });
      ring[slot] = ring[slot - size] = mixed;
      write<Partial>(states + lane, mixed, work.lanes, work.streamed, half);
      if (wide_states) write<Partial>(wide_states + lane, mixed, work.lanes, work.streamed, half);
    }
    slot = slot + 1 < 2 * size ? slot + 1 : size;
  }

  S* final = (S*)problem.final_state + work.sequence * size * channels;
  for (int64_t k = 0; k < work.tiles; ++k)
    for (int64_t i = 1; i <= size; ++i)
      store<Partial>(final + (i - 1) * channels + work.lane(k), rings[k * 2 * size + slot - i],
                     work.lanes);
  return true;
}

template <int Family, int Size, bool Partial, class Element>
bool lag_backward(const Problem& problem, const Work& work) {
  typedef typename Compute<Element>::Scalar S;
  typedef typename Compute<Element>::Vector V;
  const int64_t size = Size ? Size : problem.size, channels = problem.blocks;
  const int64_t row = size + (Family != GIVEN);
  const Rows<S> rows(problem);
  Scratch<V> scratch(work.tiles * size + 2 * (size + 1) + row + 1);
  if (!scratch.data) return false;
  V* carry = scratch.data;  // what later steps add to the gradients of h_n, h_{n-1}, ...
  V* numerators = carry + work.tiles * size;
  HalfU* halves = (HalfU*)(numerators + 2 * (size + 1));

  const S* d_final = (const S*)problem.d_final_state + work.sequence * size * channels;
  load_state<Partial>(d_final, carry, work, size);

  const S* initial = (const S*)problem.initial_state + work.sequence * size * channels;
  for (int64_t n = work.stop - work.start - 1; n >= 0; --n) {
    const int64_t t = work.start + n, step = work.batch * problem.length + t;
    const Element* gates =
        (const Element*)problem.gates + work.batch * problem.gates_batch + t * problem.gates_time;
    const Element* values = (const Element*)problem.values + work.batch * problem.values_batch +
                            t * problem.values_time;
    const Element* d_states = (const Element*)problem.d_states +
                              work.batch * problem.d_states_batch + t * problem.d_states_time;
    const S* states = (const S*)problem.states + step * channels;
    Element* d_gates = (Element*)problem.d_gates + step * row * channels;
    Element* d_values = (Element*)problem.d_values + step * channels;
    LaterGates<Element> later(gates - work.ahead * problem.gates_time, problem, work);
    for (int64_t k = 0; k < work.tiles; ++k) {
      const int64_t lane = work.lane(k);
      V* pending = carry + k * size;
      prefetch(values - work.ahead * problem.values_time + lane);
      prefetch(d_states - work.ahead * problem.d_states_time + lane);
      prefetch(states - (size + work.ahead) * channels + lane);
      later.prefetch_some(0, lane, row);
      for (int64_t j = 0; j < row && work.fetched; ++j)
        prefetch(d_gates + (j - work.ahead * row) * channels + lane);
      const V lam = pending[0] + load<Partial>(d_states + lane, work.lanes);
      const V d_value = row_backward<Family, Partial>(
          gates + lane, problem.gates_gate, d_gates + lane, channels, work.streamed, halves, size,
          work.lanes, rows, load<Partial>(values + lane, work.lanes),
          load<Partial>(states + lane, work.lanes), lam, numerators,
          [=](int64_t j) {  // h_{t-1-j}
            const S* lag = j < n ? states - (j + 1) * channels : initial + (j - n) * channels;
            return load<Partial>(lag + lane, work.lanes);
          },
          [=](int64_t j, V x) { pending[j] = j + 1 < size ? pending[j + 1] + x : x; });
      write<Partial>(d_values + lane, d_value, work.lanes, work.streamed, halves + row);
    }
  }

  S* d_initial = (S*)problem.d_initial_state + work.sequence * size * channels;
  store_state<Partial>(d_initial, carry, work, size);
  return true;
}

}  // namespace ISA_NAMESPACE
