// h_sn = exp(-step_n rate_sn) h_{sn,t-1} + b_s x_n and o_n = sum_s c_s h_sn: the scan of Mamba and
// its adjoint, which computes the states of some channels again and keeps them in scratch space.
// One vector lane is one channel n.
//
//   lam_sn = c_s do_n + decay_{sn,t+1} lam_{sn,t+1}, and with e_sn = lam_sn h_{sn,t-1} decay_sn:
//   dx_n = sum_s b_s lam_sn     db_s = sum_n x_n lam_sn     dstep_n = -sum_s rate_sn e_sn
//   dc_s = sum_n h_sn do_n      drate_sn = -sum_t step_n e_sn

#pragma once
#include "work.h"

namespace ISA_NAMESPACE {

// Some of the channels of a row. If the width does not divide the number of channels, the last
// vector repeats channels of its neighbour.
template <bool Partial, class Element> struct Channels {
  typedef typename Compute<Element>::Vector V;
  static constexpr int64_t width = Lanes<Element>::count;
  int64_t first_tile, tiles, lanes, channels;

  Channels(const SelectiveScan& p, int64_t part) {
    const int64_t all = (p.channels + width - 1) / width;
    channels = p.channels;
    lanes = Partial ? channels : width;
    first_tile = part * all / p.parts;
    tiles = (part + 1) * all / p.parts - first_tile;
  }
  int64_t lane(int64_t k) const {
    const int64_t first = (first_tile + k) * width;
    return Partial || first + width <= channels ? first : channels - width;
  }
  // 1 for the lanes that only this vector has, and 0 for those that it repeats.
  V own(int64_t k) const {
    const int64_t repeated = (first_tile + k) * width - lane(k);
    V ones;
    for (int64_t i = 0; i < width; ++i) ones[i] = i >= repeated;
    return ones;
  }
};

template <bool Partial, class Element>
bool selective_forward(const SelectiveScan& p, int64_t row, int64_t part) {
  typedef typename Compute<Element>::Vector V;
  const Channels<Partial, Element> of(p, part);
  const int64_t columns = p.columns, lanes = of.lanes;
  Scratch<V> scratch(2 * of.tiles * columns);
  if (!scratch.data) return false;
  V* state = scratch.data;
  V* rates = state + of.tiles * columns;
  const Element* initial = (const Element*)p.initial_state + row * columns * p.channels;
  for (int64_t k = 0; k < of.tiles; ++k)
    for (int64_t s = 0; s < columns; ++s) {
      const int64_t from = s * p.channels + of.lane(k);
      state[k * columns + s] = load<Partial>(initial + from, lanes);
      rates[k * columns + s] = -load<Partial>((const Element*)p.rates + from, lanes);
    }
  for (int64_t t = 0; t < p.length; ++t) {
    const int64_t step = row * p.length + t;
    const Element* b = (const Element*)p.b + step * columns;
    const Element* c = (const Element*)p.c + step * columns;
    for (int64_t k = 0; k < of.tiles; ++k) {
      const int64_t at = step * p.channels + of.lane(k);
      const V x = load<Partial>((const Element*)p.inputs + at, lanes);
      const V delta = load<Partial>((const Element*)p.steps + at, lanes);
      V* h = state + k * columns;
      V o = V{};
      for (int64_t s = 0; s < columns; ++s) {
        h[s] = exp_nonpositive(delta * rates[k * columns + s]) * h[s] + b[s] * x;
        o += c[s] * h[s];
      }
      store<Partial>((Element*)p.outputs + at, o, lanes);
    }
  }
  Element* final = (Element*)p.final_state + row * columns * p.channels;
  for (int64_t k = 0; k < of.tiles; ++k)
    for (int64_t s = 0; s < columns; ++s)
      store<Partial>(final + s * p.channels + of.lane(k), state[k * columns + s], lanes);
  return true;
}

template <bool Partial, class Element>
bool selective_backward(const SelectiveScan& p, int64_t row, int64_t part) {
  typedef typename Compute<Element>::Scalar S;
  typedef typename Compute<Element>::Vector V;
  const Channels<Partial, Element> of(p, part);
  const int64_t columns = p.columns, lanes = of.lanes, numbers = p.length * columns;
  Scratch<V> scratch(4 * numbers + 4 * columns);
  if (!scratch.data) return false;
  V* decays = scratch.data;
  V* before = decays + numbers;  // the state before each step
  V* d_b = before + numbers;
  V* d_c = d_b + numbers;
  V* state = d_c + numbers;
  V* rates = state + columns;
  V* carry = rates + columns;  // decay_{t+1} lam_{t+1}
  V* d_rates = carry + columns;
  for (int64_t j = 0; j < 2 * numbers; ++j) d_b[j] = V{};
  for (int64_t k = 0; k < of.tiles; ++k) {
    const V own = of.own(k);
    const int64_t corner = row * columns * p.channels + of.lane(k);
    for (int64_t s = 0; s < columns; ++s) {
      const int64_t from = corner + s * p.channels;
      state[s] = load<Partial>((const Element*)p.initial_state + from, lanes);
      carry[s] = load<Partial>((const Element*)p.d_final_state + from, lanes);
      rates[s] = load<Partial>((const Element*)p.rates + s * p.channels + of.lane(k), lanes);
      d_rates[s] = V{};
    }
    for (int64_t t = 0; t < p.length; ++t) {
      const int64_t step = row * p.length + t, at = step * p.channels + of.lane(k);
      const Element* b = (const Element*)p.b + step * columns;
      const V x = load<Partial>((const Element*)p.inputs + at, lanes);
      const V delta = load<Partial>((const Element*)p.steps + at, lanes);
      for (int64_t s = 0; s < columns; ++s) {
        const int64_t j = t * columns + s;
        before[j] = state[s];
        decays[j] = exp_nonpositive(-delta * rates[s]);
        state[s] = decays[j] * state[s] + b[s] * x;
      }
    }
    for (int64_t t = p.length - 1; t >= 0; --t) {
      const int64_t step = row * p.length + t, at = step * p.channels + of.lane(k);
      const Element* b = (const Element*)p.b + step * columns;
      const Element* c = (const Element*)p.c + step * columns;
      const V x = load<Partial>((const Element*)p.inputs + at, lanes);
      const V delta = load<Partial>((const Element*)p.steps + at, lanes);
      const V d_output = load<Partial>((const Element*)p.d_outputs + at, lanes);
      const V own_x = own * x, own_d_output = own * d_output;
      V d_x = V{}, d_delta = V{};
      for (int64_t s = 0; s < columns; ++s) {
        const int64_t j = t * columns + s;
        const V lam = c[s] * d_output + carry[s];
        d_c[j] += own_d_output * (decays[j] * before[j] + b[s] * x);
        d_b[j] += own_x * lam;
        d_x += b[s] * lam;
        carry[s] = decays[j] * lam;
        const V slope = carry[s] * before[j];
        d_delta -= rates[s] * slope;
        d_rates[s] -= delta * slope;
      }
      store<Partial>((Element*)p.d_inputs + at, d_x, lanes);
      store<Partial>((Element*)p.d_steps + at, d_delta, lanes);
    }
    for (int64_t s = 0; s < columns; ++s) {
      const int64_t to = corner + s * p.channels;
      store<Partial>((Element*)p.d_initial_state + to, carry[s], lanes);
      store<Partial>((Element*)p.d_rates + to, d_rates[s], lanes);
    }
  }
  const int64_t first = (part * p.batch + row) * numbers;
  for (int64_t j = 0; j < numbers; ++j) {
    S sum_b = 0, sum_c = 0;
    for (int64_t i = 0; i < Lanes<Element>::count; ++i) sum_b += d_b[j][i], sum_c += d_c[j][i];
    ((Element*)p.d_b)[first + j] = sum_b;
    ((Element*)p.d_c)[first + j] = sum_c;
  }
  return true;
}

typedef bool (*SelectivePiece)(const SelectiveScan&, int64_t row, int64_t part);

inline int run_selective(SelectivePiece piece, const SelectiveScan& p) {
  const int64_t numbers = p.batch * p.length * p.columns * p.channels;
  const int64_t threads = numbers < kGatesPerTeam ? 1 : p.threads, pieces = p.batch * p.parts;
  return run_pieces(pieces, threads,
                    [&](int64_t number) { return piece(p, number / p.parts, number % p.parts); });
}

template <class Element> int selective_scan(const SelectiveScan& p) {
  const bool partial = p.channels < Lanes<Element>::count;
  if (p.d_outputs)
    return run_selective(
        partial ? selective_backward<true, Element> : selective_backward<false, Element>, p);
  return run_selective(
      partial ? selective_forward<true, Element> : selective_forward<false, Element>, p);
}

}  // namespace ISA_NAMESPACE
