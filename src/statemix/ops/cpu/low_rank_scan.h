// h_t = (diag(d) + sum_i u_i w_i^T) h_{t-1} + x_t for each head, and its adjoint:
//
//   lam_t = dy_t + g_{t+1},  g_t = d lam + sum_i w_i (u_i.lam)
//   d d = lam h_{t-1},  d u_i = lam (w_i.h_{t-1}),  d w_i = (u_i.lam) h_{t-1},  d x = lam
//
// Vector lanes are entries of one head. Where the last vector of a head is not full, the state and
// its adjoint have zeros behind it, so that products over a head need no mask.

#pragma once
#include <type_traits>

#include "work.h"

namespace ISA_NAMESPACE {

constexpr int64_t kMostRank = 8;

// Call body(k, Partial, lane, lanes) for each vector of a head.
template <class V, class Body>
inline __attribute__((always_inline)) void for_vectors(int64_t entries, Body body) {
  constexpr int64_t width = Lanes<typename ScalarOf<V>::type>::count;
  const int64_t full = entries / width, rest = entries % width;
  for (int64_t k = 0; k < full; ++k) body(k, std::false_type{}, k * width, width);
  if (rest) body(full, std::true_type{}, full * width, rest);
}

// Four sums, so that an addition need not wait for the one before it.
template <class Element, class V>
inline typename ScalarOf<V>::type dot(const Element* row, const V* x, int64_t entries) {
  typedef typename ScalarOf<V>::type S;
  constexpr int64_t width = Lanes<S>::count;
  const int64_t full = entries / width, rest = entries % width;
  V sums[4] = {};
  int64_t k = 0;
  for (; k + 4 <= full; k += 4)
    for (int64_t j = 0; j < 4; ++j) sums[j] += load<false>(row + (k + j) * width, width) * x[k + j];
  for (; k < full; ++k) sums[0] += load<false>(row + k * width, width) * x[k];
  if (rest) sums[1] += load<true>(row + full * width, rest) * x[full];
  const V sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  S parts[width];
  memcpy(parts, &sum, sizeof(sum));
  for (int64_t half = width / 2; half; half /= 2)
    for (int64_t l = 0; l < half; ++l) parts[l] += parts[l + half];
  return parts[0];
}

template <class Element> bool low_rank_forward(const Problem& problem, const Work& work) {
  typedef typename Compute<Element>::Scalar S;
  typedef typename Compute<Element>::Vector V;
  const int64_t heads = problem.size, entries = problem.blocks, row = problem.gates_per_row;
  const int64_t rank = row / 2, vectors = (entries + work.width - 1) / work.width;
  Scratch<V> scratch(work.tiles * vectors);
  if (!scratch.data) return false;

  const S* initial = (const S*)problem.initial_state + work.sequence * heads * entries;
  for (int64_t k = 0; k < work.tiles; ++k)
    for_vectors<V>(entries, [&](int64_t n, auto partial, int64_t lane, int64_t lanes) {
      const S* from = initial + (work.first_tile + k) * entries + lane;
      scratch.data[k * vectors + n] = load<partial.value>(from, lanes);
    });

  for (int64_t t = work.start; t < work.stop; ++t) {
    const Element* gates =
        (const Element*)problem.gates + work.batch * problem.gates_batch + t * problem.gates_time;
    const Element* values = (const Element*)problem.values + work.batch * problem.values_batch +
                            t * problem.values_time;
    const int64_t step = (work.batch * problem.length + t) * heads * entries;
    LaterGates<Element> later(gates + work.ahead * problem.gates_time, problem, work);
    for (int64_t k = 0; k < work.tiles; ++k) {
      const int64_t head = work.first_tile + k, place = step + head * entries;
      const Element* d = gates + head * problem.gates_row;
      const Element *u = d + problem.gates_gate, *w = u + rank * problem.gates_gate;
      const Element* x = values + head * problem.values_row;
      V* h = scratch.data + k * vectors;
      S along[kMostRank];
      for (int64_t i = 0; i < rank; ++i) along[i] = dot(w + i * problem.gates_gate, h, entries);
      HalfU halves[1];
      for_vectors<V>(entries, [&](int64_t n, auto partial, int64_t lane, int64_t lanes) {
        constexpr bool Partial = decltype(partial)::value;
        prefetch(x + work.ahead * problem.values_time + lane);
        later.prefetch_some(head, lane, row);
        V next = load<Partial>(x + lane, lanes) + load<Partial>(d + lane, lanes) * h[n];
        for (int64_t i = 0; i < rank; ++i)
          next += load<Partial>(u + i * problem.gates_gate + lane, lanes) * along[i];
        // Only the lanes in use: 0 times an infinite sum would be NaN behind them.
        store<Partial>((S*)(h + n), next, lanes);
        write<Partial>((Element*)problem.states + place + lane, next, lanes, work.streamed, halves);
        if (problem.wide_states)
          write<Partial>((S*)problem.wide_states + place + lane, next, lanes, work.streamed,
                         halves);
      });
    }
  }

  S* final = (S*)problem.final_state + work.sequence * heads * entries;
  for (int64_t k = 0; k < work.tiles; ++k)
    for_vectors<V>(entries, [&](int64_t n, auto partial, int64_t lane, int64_t lanes) {
      S* to = final + (work.first_tile + k) * entries + lane;
      store<partial.value>(to, scratch.data[k * vectors + n], lanes);
    });
  return true;
}

template <class Element> bool low_rank_backward(const Problem& problem, const Work& work) {
  typedef typename Compute<Element>::Scalar S;
  typedef typename Compute<Element>::Vector V;
  const int64_t heads = problem.size, entries = problem.blocks, row = problem.gates_per_row;
  const int64_t rank = row / 2, vectors = (entries + work.width - 1) / work.width;
  Scratch<V> scratch((work.tiles + 1) * vectors);
  if (!scratch.data) return false;
  V* before = scratch.data + work.tiles * vectors;  // h_{t-1} of one head

  const S* d_final = (const S*)problem.d_final_state + work.sequence * heads * entries;
  for (int64_t k = 0; k < work.tiles; ++k)
    for_vectors<V>(entries, [&](int64_t n, auto partial, int64_t lane, int64_t lanes) {
      const S* from = d_final + (work.first_tile + k) * entries + lane;
      scratch.data[k * vectors + n] = load<partial.value>(from, lanes);
    });

  const S* initial = (const S*)problem.initial_state + work.sequence * heads * entries;
  for (int64_t t = work.stop - 1; t >= work.start; --t) {
    const int64_t step = (work.batch * problem.length + t) * heads * entries;
    const Element* gates =
        (const Element*)problem.gates + work.batch * problem.gates_batch + t * problem.gates_time;
    const Element* d_states = (const Element*)problem.d_states +
                              work.batch * problem.d_states_batch + t * problem.d_states_time;
    const S* previous =
        t > work.start ? (const S*)problem.states + step - heads * entries : initial;
    LaterGates<Element> later(gates - work.ahead * problem.gates_time, problem, work);
    for (int64_t k = 0; k < work.tiles; ++k) {
      const int64_t head = work.first_tile + k, place = step + head * entries;
      const Element* d = gates + head * problem.gates_row;
      const Element *u = d + problem.gates_gate, *w = u + rank * problem.gates_gate;
      const Element* d_state = d_states + head * problem.d_states_row;
      Element* d_gates = (Element*)problem.d_gates + place * row;
      V* lam = scratch.data + k * vectors;
      for_vectors<V>(entries, [&](int64_t n, auto partial, int64_t lane, int64_t lanes) {
        constexpr bool Partial = decltype(partial)::value;
        prefetch(d_state - work.ahead * problem.d_states_time + lane);
        prefetch(previous + head * entries - work.ahead * heads * entries + lane);
        later.prefetch_some(head, lane, row);
        lam[n] += load<Partial>(d_state + lane, lanes);
        before[n] = load<Partial>(previous + head * entries + lane, lanes);
      });
      S by_state[kMostRank], by_adjoint[kMostRank];
      for (int64_t i = 0; i < rank; ++i) {
        by_state[i] = dot(w + i * problem.gates_gate, before, entries);
        by_adjoint[i] = dot(u + i * problem.gates_gate, lam, entries);
      }
      // Row by row, so that only one line of memory at a time is written in part.
      auto write_row = [&](Element* to, auto gradient) {
        HalfU halves[1];
        for_vectors<V>(entries, [&](int64_t n, auto partial, int64_t lane, int64_t lanes) {
          if (work.fetched) prefetch(to - work.ahead * heads * row * entries + lane);
          write<decltype(partial)::value>(to + lane, gradient(n), lanes, work.streamed, halves);
        });
      };
      write_row(d_gates, [&](int64_t n) { return lam[n] * before[n]; });
      for (int64_t i = 0; i < rank; ++i)
        write_row(d_gates + (1 + i) * entries, [&](int64_t n) { return lam[n] * by_state[i]; });
      for (int64_t i = 0; i < rank; ++i)
        write_row(d_gates + (1 + rank + i) * entries,
                  [&](int64_t n) { return before[n] * by_adjoint[i]; });
      write_row((Element*)problem.d_values + place, [&](int64_t n) { return lam[n]; });
      for_vectors<V>(entries, [&](int64_t n, auto partial, int64_t lane, int64_t lanes) {
        constexpr bool Partial = decltype(partial)::value;
        V next = load<Partial>(d + lane, lanes) * lam[n];
        for (int64_t i = 0; i < rank; ++i)
          next += load<Partial>(w + i * problem.gates_gate + lane, lanes) * by_adjoint[i];
        store<Partial>((S*)(lam + n), next, lanes);
      });
    }
  }

  S* d_initial = (S*)problem.d_initial_state + work.sequence * heads * entries;
  for (int64_t k = 0; k < work.tiles; ++k)
    for_vectors<V>(entries, [&](int64_t n, auto partial, int64_t lane, int64_t lanes) {
      S* to = d_initial + (work.first_tile + k) * entries + lane;
      store<partial.value>(to, scratch.data[k * vectors + n], lanes);
    });
  return true;
}

}  // namespace ISA_NAMESPACE
