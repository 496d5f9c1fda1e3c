// h_t = (1 - a) H_1 ... H_m h_{t-1} + a v_t for blocks of the family "householder", and its
// adjoint.
//
//   H_j = I - c_j u_j u_j^T,  c_j = 2 |u_j|^2 / (1 + |u_j|^4),  u_j = g_j / T
//   a   = sigmoid(mean_i(g_i0) / T - 3)
//
// The product is never formed: H_m is applied to h first. With x_j the state before H_j and mu_j
// the adjoint of what H_j returns,
//
//   d u_j = -c_j (mu_j (u_j.x_j) + x_j (u_j.mu_j)) - 2 c'(|u_j|^2) (u_j.mu_j) (u_j.x_j) u_j
//
// All vectors are measured in units of s = max(1, |u|_inf), so that no power overflows: with
// w = u / s and q = |w|^2, c u u^T = 2 q / (s^-4 + q^2) w w^T. Within a step the state is
// multiplied by a power of two, `part`, so that its products with w do not overflow.

#pragma once
#include "gates.h"
#include "work.h"

namespace ISA_NAMESPACE {

// One reflection of a block in one tile.
template <class V> struct Reflection {
  V factor, curve, inverse_unit;  // 2 q / (s^-4 + q^2), 4 (s^-4 - q^2) / (s^-4 + q^2)^2, 1 / s
};

// Write w of one row of raw gates and return the rest of its reflection.
template <bool Partial, class Element, class V, class S>
inline Reflection<V> reflection_of(const Element* gates, int64_t stride, int64_t size,
                                   int64_t lanes, S inverse, V* w) {
  V largest = V{};
  for (int64_t i = 0; i < size; ++i) {
    w[i] = load<Partial>(gates + i * stride, lanes);
    largest = larger(largest, absolute(w[i]));
  }
  const V reach = largest * inverse;
  const V scale = reach > 1 ? 1 / largest : V{} + inverse;
  V q = V{};
  for (int64_t i = 0; i < size; ++i) {
    w[i] *= scale;
    q += w[i] * w[i];
  }
  const V inverse_unit = reach > 1 ? 1 / reach : V{} + 1;
  const V fourth = inverse_unit * inverse_unit * (inverse_unit * inverse_unit);
  const V below = 1 / (fourth + q * q);
  return {2 * q * below, 4 * (fourth - q * q) * below * below, inverse_unit};
}

template <class V> inline V product(const V* a, const V* b, int64_t size) {
  V sum = a[0] * b[0];
  for (int64_t i = 1; i < size; ++i) sum += a[i] * b[i];
  return sum;
}

// The input gate a of a block, and 1 - a with all its digits.
template <class V> struct Opening {
  V open, kept;
};
template <bool Partial, class Element, class S>
inline Opening<typename Compute<Element>::Vector> opening_of(const Element* gates, int64_t row,
                                                             int64_t size, int64_t lanes,
                                                             S inverse) {
  typedef typename Compute<Element>::Vector V;
  // Divided before the sum, so that the mean of finite gates is finite.
  const S share = (S)1 / size;
  V mean = V{};
  for (int64_t i = 0; i < size; ++i) mean += load<Partial>(gates + i * row, lanes) * share;
  const V x = mean * inverse - 3;
  const V e = exp_nonpositive(-absolute(x));
  const V more = 1 / (1 + e), less = e / (1 + e);
  return {x > 0 ? more : less, x > 0 ? less : more};
}

template <int Size, bool Partial, class Element>
bool reflect_forward(const Problem& problem, const Work& work) {
  typedef typename Compute<Element>::Scalar S;
  typedef typename Compute<Element>::Vector V;
  const int64_t size = Size ? Size : problem.size, blocks = problem.blocks;
  const Rows<S> rows(problem);
  const S inverse = rows.inverse, part = rows.part, whole = 1 / part;
  Scratch<V> scratch((work.tiles + 2) * size);
  if (!scratch.data) return false;
  V* state = scratch.data;
  V* w = state + work.tiles * size;
  HalfU* halves = (HalfU*)(w + size);

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
    for (int64_t k = 0; k < work.tiles; ++k) {
      const int64_t lane = work.lane(k);
      V* h = state + k * size;
      for (int64_t i = 0; i < size; ++i) {
        prefetch(values + work.ahead * problem.values_time + i * problem.values_row + lane);
        later.prefetch_some(i, lane, size + 1);
      }
      for (int64_t i = 0; i < size; ++i) h[i] *= part;
      for (int64_t j = size - 1; j >= 0; --j) {
        const Reflection<V> one = reflection_of<Partial>(
            gates + j * problem.gates_row + lane, problem.gates_gate, size, work.lanes, inverse, w);
        const V along = one.factor * product(w, h, size);
        for (int64_t i = 0; i < size; ++i) h[i] -= along * w[i];
      }
      const Opening<V> gate = opening_of<Partial>(gates + size * problem.gates_gate + lane,
                                                  problem.gates_row, size, work.lanes, inverse);
      for (int64_t i = 0; i < size; ++i) {
        h[i] = gate.kept * h[i] * whole +
               gate.open * load<Partial>(values + i * problem.values_row + lane, work.lanes);
        write<Partial>(states + i * blocks + lane, h[i], work.lanes, work.streamed, halves + i);
        if (wide_states)
          write<Partial>(wide_states + i * blocks + lane, h[i], work.lanes, work.streamed, halves);
      }
    }
  }

  S* final = (S*)problem.final_state + work.sequence * size * blocks;
  store_state<Partial>(final, state, work, size);
  return true;
}

template <int Size, bool Partial, class Element>
bool reflect_backward(const Problem& problem, const Work& work) {
  typedef typename Compute<Element>::Scalar S;
  typedef typename Compute<Element>::Vector V;
  const int64_t size = Size ? Size : problem.size, blocks = problem.blocks, row = size + 1;
  const Rows<S> rows(problem);
  const S inverse = rows.inverse, part = rows.part, whole = 1 / part;
  Scratch<V> scratch((work.tiles + 3 * size + 3) * size);
  Scratch<Reflection<V>> reflections(size);
  if (!scratch.data || !reflections.data) return false;
  V* carry = scratch.data;           // the adjoint of the state before the step
  V* w = carry + work.tiles * size;  // w[j * size]: of H_{j+1}
  V* x = w + size * size;            // x[j * size]: the state that H_1 ... H_j are still to change
  HalfU* halves = (HalfU*)(x + (size + 1) * size);

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
    const S* previous =
        t > work.start ? (const S*)problem.states + (step - 1) * size * blocks : initial;
    Element* d_gates = (Element*)problem.d_gates + step * size * row * blocks;
    Element* d_values = (Element*)problem.d_values + step * size * blocks;
    LaterGates<Element> later(gates - work.ahead * problem.gates_time, problem, work);
    for (int64_t k = 0; k < work.tiles; ++k) {
      const int64_t lane = work.lane(k);
      V* mu = carry + k * size;
      auto write_gate = [&](int64_t i, int64_t j, V gradient) {
        write<Partial>(d_gates + (i * row + j) * blocks + lane, gradient, work.lanes, work.streamed,
                       halves + i * row + j);
      };
      for (int64_t i = 0; i < size; ++i) {
        prefetch(values - work.ahead * problem.values_time + i * problem.values_row + lane);
        prefetch(d_states - work.ahead * problem.d_states_time + i * problem.d_states_row + lane);
        later.prefetch_some(i, lane, row);
        for (int64_t j = 0; j < row && work.fetched; ++j)
          prefetch(d_gates + ((i - work.ahead * size) * row + j) * blocks + lane);
        mu[i] += load<Partial>(d_states + i * problem.d_states_row + lane, work.lanes);
        x[size * size + i] = load<Partial>(previous + i * blocks + lane, work.lanes) * part;
      }
      for (int64_t j = size - 1; j >= 0; --j) {
        const V* before = x + (j + 1) * size;
        V* along = w + j * size;
        reflections.data[j] =
            reflection_of<Partial>(gates + j * problem.gates_row + lane, problem.gates_gate, size,
                                   work.lanes, inverse, along);
        const V by_state = reflections.data[j].factor * product(along, before, size);
        for (int64_t i = 0; i < size; ++i) x[j * size + i] = before[i] - by_state * along[i];
      }
      const Opening<V> gate = opening_of<Partial>(gates + size * problem.gates_gate + lane,
                                                  problem.gates_row, size, work.lanes, inverse);
      V d_open = V{};
      for (int64_t i = 0; i < size; ++i) {
        const V value = load<Partial>(values + i * problem.values_row + lane, work.lanes);
        // Halved, because the difference may overflow although the gradient is finite.
        d_open += mu[i] * (value * (S)0.5 - x[i] * (whole / 2));
        write<Partial>(d_values + i * blocks + lane, gate.open * mu[i], work.lanes, work.streamed,
                       halves + size * row + i);
        mu[i] *= gate.kept;
      }
      const V d_mean = d_open * (gate.open * gate.kept) * (inverse * 2 / size);
      for (int64_t i = 0; i < size; ++i) write_gate(i, size, d_mean);
      for (int64_t j = 0; j < size; ++j) {
        const V *before = x + (j + 1) * size, *along = w + j * size;
        const Reflection<V> one = reflections.data[j];
        const V by_state = product(along, before, size), by_adjoint = product(along, mu, size);
        const V bent = one.curve * by_adjoint * by_state;
        // The gradient of u_j is scale (c mu (w.x) + c x (w.mu) + c' (w.mu) (w.x) w).
        const V scale = one.inverse_unit * -inverse;
        const V of_state = one.factor * by_adjoint, of_adjoint = one.factor * by_state;
        for (int64_t i = 0; i < size; ++i)
          write_gate(j, i,
                     scale * (mu[i] * of_adjoint + before[i] * of_state + bent * along[i]) * whole);
        for (int64_t i = 0; i < size; ++i) mu[i] -= of_state * along[i];
      }
    }
  }

  S* d_initial = (S*)problem.d_initial_state + work.sequence * size * blocks;
  store_state<Partial>(d_initial, carry, work, size);
  return true;
}

}  // namespace ISA_NAMESPACE
