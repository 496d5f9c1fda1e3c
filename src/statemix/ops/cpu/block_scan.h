// h_i = sum_j p_ij h_{j,t-1} + p_i0 v_i for dense blocks, forward and adjoint.
//
// Time is the outer loop. Small sizes finish one tile of lanes after another, with states and
// adjoints in registers. Large sizes run row by row over all tiles, which reads gates in memory
// order while the states of all tiles stay in the first-level cache.

#pragma once
#include "rows.h"
#include "work.h"

namespace ISA_NAMESPACE {

template <int Family, int Size, bool Partial, class Element>
bool block_forward(const Problem& problem, const Work& work) {
  typedef typename Compute<Element>::Scalar S;
  typedef typename Compute<Element>::Vector V;
  const int64_t size = Size ? Size : problem.size, blocks = problem.blocks;
  const int64_t row = size + (Family != GIVEN);
  const Rows<S> rows(problem);
  Scratch<V> scratch(2 * work.tiles * size + size);
  if (!scratch.data) return false;
  V* state = scratch.data;
  V* next = state + work.tiles * size;
  HalfU* halves = (HalfU*)(next + work.tiles * size);

  const S* initial = (const S*)problem.initial_state + work.sequence * size * blocks;
  load_state<Partial>(initial, state, work, size);

  for (int64_t t = work.start; t < work.stop; ++t) {
    const Element* gates =
        (const Element*)problem.gates + work.batch * problem.gates_batch + t * problem.gates_time;
    const Element* values = (const Element*)problem.values + work.batch * problem.values_batch +
                            t * problem.values_time;
    const int64_t step = work.batch * problem.length + t;
    Element* states = (Element*)problem.states + step * size * blocks;
    S* wide_states = problem.wide_states ? (S*)problem.wide_states + step * size * blocks : nullptr;
    LaterGates<Element> later(gates + work.ahead * problem.gates_time, problem, work);
    auto row_of = [&](int64_t i, int64_t lane, auto before) {
      prefetch(values + work.ahead * problem.values_time + i * problem.values_row + lane);
      later.prefetch_some(i, lane, row);
      V value = load<Partial>(values + i * problem.values_row + lane, work.lanes);
      V mixed =
          row_forward<Family, Partial>(gates + i * problem.gates_row + lane, problem.gates_gate,
                                       size, work.lanes, rows, value, before);
      write<Partial>(states + i * blocks + lane, mixed, work.lanes, work.streamed, halves + i);
      if (wide_states)
        write<Partial>(wide_states + i * blocks + lane, mixed, work.lanes, work.streamed, halves);
      return mixed;
    };
    if (Size) {
      for (int64_t k = 0; k < work.tiles; ++k) {
        V before[Size + 1];
        for (int64_t j = 0; j < Size; ++j) before[j] = state[k * Size + j];
        for (int64_t i = 0; i < Size; ++i)
          state[k * Size + i] = row_of(i, work.lane(k), [&](int64_t j) { return before[j]; });
      }
      continue;
    }
    for (int64_t i = 0; i < size; ++i)
      for (int64_t k = 0; k < work.tiles; ++k) {
        const V* h = state + k * size;
        next[k * size + i] = row_of(i, work.lane(k), [h](int64_t j) { return h[j]; });
      }
    V* swap = state;
    state = next;
    next = swap;
  }

  S* final = (S*)problem.final_state + work.sequence * size * blocks;
  store_state<Partial>(final, state, work, size);
  return true;
}

template <int Family, int Size, bool Partial, class Element>
bool block_backward(const Problem& problem, const Work& work) {
  typedef typename Compute<Element>::Scalar S;
  typedef typename Compute<Element>::Vector V;
  const int64_t size = Size ? Size : problem.size, blocks = problem.blocks;
  const int64_t row = size + (Family != GIVEN);
  const Rows<S> rows(problem);
  Scratch<V> scratch(2 * work.tiles * size + 2 * (size + 1) + size * (row + 1));
  if (!scratch.data) return false;
  V* carry = scratch.data;  // A_{t+1}^T lam_{t+1}
  V* next = carry + work.tiles * size;
  V* numerators = next + work.tiles * size;
  HalfU* halves = (HalfU*)(numerators + 2 * (size + 1));

  const S* d_final = (const S*)problem.d_final_state + work.sequence * size * blocks;
  load_state<Partial>(d_final, carry, work, size);

  const S* initial = (const S*)problem.initial_state + work.sequence * size * blocks;
  for (int64_t t = work.stop - 1; t >= work.start; --t) {
    const int64_t step = work.batch * problem.length + t;
    const Element* gates =
        (const Element*)problem.gates + work.batch * problem.gates_batch + t * problem.gates_time;
    const Element* values = (const Element*)problem.values + work.batch * problem.values_batch +
                            t * problem.values_time;
    const Element* d_states = (const Element*)problem.d_states +
                              work.batch * problem.d_states_batch + t * problem.d_states_time;
    const S* states = (const S*)problem.states + step * size * blocks;
    const S* previous = t > work.start ? states - size * blocks : initial;
    Element* d_gates = (Element*)problem.d_gates + step * size * row * blocks;
    Element* d_values = (Element*)problem.d_values + step * size * blocks;
    LaterGates<Element> later(gates - work.ahead * problem.gates_time, problem, work);
    // One row of one tile; `push` collects A_t^T lam_t.
    auto row_of = [&](int64_t i, int64_t lane, V lam, V* numbers, auto before, auto push) {
      prefetch(values - work.ahead * problem.values_time + i * problem.values_row + lane);
      prefetch(d_states - work.ahead * problem.d_states_time + i * problem.d_states_row + lane);
      prefetch(states + (i - (work.ahead + 1) * size) * blocks + lane);
      later.prefetch_some(i, lane, row);
      V value = load<Partial>(values + i * problem.values_row + lane, work.lanes);
      V h = load<Partial>(states + i * blocks + lane, work.lanes);
      lam += load<Partial>(d_states + i * problem.d_states_row + lane, work.lanes);
      for (int64_t j = 0; j < row && work.fetched; ++j)
        prefetch(d_gates + ((i - work.ahead * size) * row + j) * blocks + lane);
      HalfU* half = halves + i * (row + 1);
      V d_value = row_backward<Family, Partial>(
          gates + i * problem.gates_row + lane, problem.gates_gate,
          d_gates + i * row * blocks + lane, blocks, work.streamed, half, size, work.lanes, rows,
          value, h, lam, numbers, before, push);
      write<Partial>(d_values + i * blocks + lane, d_value, work.lanes, work.streamed, half + row);
    };
    if (Size) {
      for (int64_t k = 0; k < work.tiles; ++k) {
        const int64_t lane = work.lane(k);
        V before[Size + 1], sums[Size + 1], numbers[2 * (Size + 1)];
        for (int64_t j = 0; j < Size; ++j) {
          before[j] = load<Partial>(previous + j * blocks + lane, work.lanes);
          sums[j] = V{};
        }
        for (int64_t i = 0; i < Size; ++i)
          row_of(
              i, lane, carry[k * Size + i], numbers, [&](int64_t j) { return before[j]; },
              [&](int64_t j, V x) { sums[j] += x; });
        for (int64_t j = 0; j < Size; ++j) carry[k * Size + j] = sums[j];
      }
      continue;
    }
    for (int64_t i = 0; i < size; ++i)
      for (int64_t k = 0; k < work.tiles; ++k) {
        const int64_t lane = work.lane(k);
        V* sums = next + k * size;
        row_of(
            i, lane, carry[k * size + i], numerators,
            [=](int64_t j) { return load<Partial>(previous + j * blocks + lane, work.lanes); },
            [=](int64_t j, V x) { sums[j] = i ? sums[j] + x : x; });
      }
    V* swap = carry;
    carry = next;
    next = swap;
  }

  S* d_initial = (S*)problem.d_initial_state + work.sequence * size * blocks;
  store_state<Partial>(d_initial, carry, work, size);
  return true;
}

}  // namespace ISA_NAMESPACE
