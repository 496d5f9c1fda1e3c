// The states of FPRNN and their adjoint, where the mixer of a token sees the state h' before it:
//
//   (p, q) = x + W h',  s_i = silu(p_i),  u_i = s_i / sqrt(|s_i|^2 + 1e-6),  c_i = most
//   sigmoid(q_i) z = lambda (b - h'),  gamma = 1 - lambda,  S = U diag(gamma) U^T P w = diag(c) U
//   z,  P = I + diag(c) (L - S),  h = b - z - gamma U^T w
//
// with i = 1 ... rank, and L the part of U U^T below the diagonal for a product of reflections, or
// 0 for a sum. `raw` holds the vectors p_i and then all q_i. A piece is a few rows of the batch,
// which share each read of W. Each output of a product with W is summed in one order, whatever the
// number of rows. Without a weight, W is 0: the mixer sees the token alone.

#pragma once
#include <cmath>

#include "low_rank_scan.h"

namespace ISA_NAMESPACE {

constexpr int64_t kPanel = 32, kMostRows = 4;

inline int64_t padded(int64_t size) { return (size + kPanel - 1) / kPanel * kPanel; }

// out = in W for `rows` rows. W lies in panels of 32 columns, each [depth, 32].
template <int Rows, class Element>
inline void multiply_rows(const Element* in, int64_t in_row, int64_t depth, const Element* weight,
                          int64_t columns, Element* out, int64_t out_row) {
  typedef typename Compute<Element>::Vector V;
  constexpr int64_t width = Lanes<Element>::count, pair = 2 * width;
  for (int64_t panel = 0; panel < columns; panel += kPanel)
    for (int64_t part = 0; part < kPanel; part += pair) {
      const Element* w = weight + panel * depth + part;
      V sums[Rows][2] = {};
      for (int64_t k = 0; k < depth; ++k, w += kPanel) {
        const V left = load<false>(w, width), right = load<false>(w + width, width);
        for (int r = 0; r < Rows; ++r) {
          const Element x = in[r * in_row + k];
          sums[r][0] += x * left;
          sums[r][1] += x * right;
        }
      }
      for (int r = 0; r < Rows; ++r)
        for (int half = 0; half < 2; ++half)
          store<false>(out + r * out_row + panel + part + half * width, sums[r][half], width);
    }
}
template <class Element>
inline void multiply(int64_t rows, const Element* in, int64_t in_row, int64_t depth,
                     const void* weight, int64_t columns, Element* out, int64_t out_row) {
  const Element* w = (const Element*)weight;
  switch (rows) {
    case 1: return multiply_rows<1>(in, in_row, depth, w, columns, out, out_row);
    case 2: return multiply_rows<2>(in, in_row, depth, w, columns, out, out_row);
    case 3: return multiply_rows<3>(in, in_row, depth, w, columns, out, out_row);
    default: return multiply_rows<4>(in, in_row, depth, w, columns, out, out_row);
  }
}

// Solve P x = y in place, or P^T x = y: Gaussian elimination with pivots.
template <class S>
inline void solve_small(const S (*P)[kMostRank], bool transposed, int rank, S* y) {
  S A[kMostRank][kMostRank];
  for (int i = 0; i < rank; ++i)
    for (int j = 0; j < rank; ++j) A[i][j] = transposed ? P[j][i] : P[i][j];
  for (int i = 0; i < rank; ++i) {
    int pivot = i;
    for (int j = i + 1; j < rank; ++j)
      if (std::abs(A[j][i]) > std::abs(A[pivot][i])) pivot = j;
    if (pivot != i) {
      for (int j = i; j < rank; ++j) std::swap(A[i][j], A[pivot][j]);
      std::swap(y[i], y[pivot]);
    }
    for (int k = i + 1; k < rank; ++k) {
      const S factor = A[k][i] / A[i][i];
      for (int j = i + 1; j < rank; ++j) A[k][j] -= factor * A[i][j];
      y[k] -= factor * y[i];
    }
  }
  for (int i = rank - 1; i >= 0; --i) {
    for (int j = i + 1; j < rank; ++j) y[i] -= A[i][j] * y[j];
    y[i] /= A[i][i];
  }
}

template <class V> inline V sigmoid_of(V x) {
  const V e = exp_nonpositive(-absolute(x));
  return (x > 0 ? V{} + 1 : e) / (1 + e);
}

template <class V, class S = typename ScalarOf<V>::type> inline S sum_of(V x) {
  S sum = 0;
  for (int64_t i = 0; i < (int64_t)(sizeof(V) / sizeof(S)); ++i) sum += x[i];
  return sum;
}

// What a token of one row computes before its new state. Vectors in scratch space are padded with
// zeros.
template <class Element> struct Token {
  typedef typename Compute<Element>::Vector V;
  static constexpr int64_t width = Lanes<Element>::count;
  const FixedPoint& p;
  const int rank;
  V *u, *z, *b, *lambda, *mixed;  // mixed = U^T w
  Element inverse[kMostRank], c[kMostRank], a[kMostRank], w[kMostRank];
  Element S[kMostRank][kMostRank], L[kMostRank][kMostRank], P[kMostRank][kMostRank];
  const int64_t count;  // vectors of a state

  static int64_t space(const FixedPoint& p) { return (p.rank + 4) * padded(p.size) / width; }
  Token(const FixedPoint& p, V* scratch)
      : p(p), rank(p.rank), u(scratch), count(padded(p.size) / width) {
    z = u + rank * count, b = z + count, lambda = b + count, mixed = lambda + count;
  }
  // The k-th vector of a state in memory.
  V at(const Element* from, int64_t k) const {
    const int64_t left = p.size - k * width;
    return left >= width ? load<false>(from + k * width, width)
           : left > 0    ? load<true>(from + k * width, left)
                         : V{};
  }
  void put(Element* to, int64_t k, V x) const {
    const int64_t left = p.size - k * width;
    if (left >= width)
      store<false>(to + k * width, x, width);
    else if (left > 0)
      store<true>(to + k * width, x, left);
  }
  void prepare(const Element* raw, const Element* decays, const Element* inputs, const V* h) {
    for (int64_t k = 0; k < count; ++k) {
      b[k] = at(inputs, k), lambda[k] = at(decays, k);
      z[k] = lambda[k] * (b[k] - h[k]);
    }
    for (int i = 0; i < rank; ++i) {
      V squares = V{}, along = V{};
      V* one = u + i * count;
      for (int64_t k = 0; k < count; ++k) {
        const V x = at(raw + i * p.size, k);
        one[k] = x * sigmoid_of(x);
        squares += one[k] * one[k];
      }
      inverse[i] = 1 / std::sqrt(sum_of(squares) + (Element)1e-6);
      for (int64_t k = 0; k < count; ++k) {
        one[k] *= inverse[i];
        along += one[k] * z[k];
      }
      c[i] = (Element)p.most / (1 + std::exp(-raw[rank * p.size + i]));
      a[i] = sum_of(along);
      for (int j = 0; j <= i; ++j) {
        const V* other = u + j * count;
        V kept = V{}, whole = V{};
        for (int64_t k = 0; k < count; ++k) {
          const V product = one[k] * other[k];
          whole += product;
          kept += product * (1 - lambda[k]);
        }
        S[i][j] = S[j][i] = sum_of(kept);
        L[i][j] = p.product && j < i ? sum_of(whole) : 0;
        L[j][i] = j < i ? 0 : L[j][i];
      }
    }
    for (int i = 0; i < rank; ++i) {
      w[i] = c[i] * a[i];
      for (int j = 0; j < rank; ++j) P[i][j] = (i == j) + c[i] * (L[i][j] - S[i][j]);
    }
    solve_small(P, false, rank, w);
    for (int64_t k = 0; k < count; ++k) {
      mixed[k] = V{};
      for (int i = 0; i < rank; ++i) mixed[k] += w[i] * u[i * count + k];
    }
  }
  V state(int64_t k) const { return b[k] - z[k] - (1 - lambda[k]) * mixed[k]; }
};

template <class Element>
bool fixed_point_forward(const FixedPoint& p, int64_t first, int64_t rows) {
  typedef typename Compute<Element>::Vector V;
  constexpr int64_t width = Lanes<Element>::count;
  const int64_t rank = p.rank, outputs = rank * (p.size + 1), columns = padded(outputs);
  const int64_t count = padded(p.size) / width;
  Scratch<V> scratch(Token<Element>::space(p) + rows * (count + columns / width));
  if (!scratch.data) return false;
  Token<Element> token(p, scratch.data);
  V* state = scratch.data + Token<Element>::space(p);
  Element* seen = (Element*)(state + rows * count);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < count; ++k)
      state[r * count + k] = token.at((const Element*)p.initial_state + (first + r) * p.size, k);
  std::fill(seen, seen + rows * columns, (Element)0);
  for (int64_t t = 0; t < p.length; ++t) {
    if (p.weight)
      multiply(rows, (const Element*)state, count * width, p.size, p.weight, columns, seen,
               columns);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t step = (first + r) * p.length + t;
      Element* raw = (Element*)p.raw + step * outputs;
      const Element* vectors = (const Element*)p.vectors + step * rank * p.size;
      const Element* strengths = (const Element*)p.strengths + step * rank - rank * p.size;
      for (int64_t k = 0; k < outputs; ++k)
        raw[k] = seen[r * columns + k] + (k < rank * p.size ? vectors : strengths)[k];
      V* h = state + r * count;
      token.prepare(raw, (const Element*)p.decays + step * p.size,
                    (const Element*)p.inputs + step * p.size, h);
      for (int64_t k = 0; k < count; ++k) {
        h[k] = token.state(k);
        token.put((Element*)p.states + step * p.size, k, h[k]);
      }
    }
  }
  return true;
}

template <class Element>
bool fixed_point_backward(const FixedPoint& p, int64_t first, int64_t rows) {
  typedef typename Compute<Element>::Vector V;
  constexpr int64_t width = Lanes<Element>::count;
  const int rank = p.rank;
  const int64_t outputs = rank * (p.size + 1), columns = padded(p.size), count = columns / width;
  Scratch<V> scratch(Token<Element>::space(p) + (2 * rows + 3 + rank) * count +
                     rows * padded(outputs) / width);
  if (!scratch.data) return false;
  Token<Element> token(p, scratch.data);
  V* carry = scratch.data + Token<Element>::space(p);  // the adjoint of the state, but for W
  V* through = carry + rows * count;                   // what comes to it through W
  V* before = through + rows * count;
  V* d_y = before + count;
  V* d_mixed = d_y + count;
  V* d_u = d_mixed + count;
  Element* d_seen = (Element*)(d_u + rank * count);
  for (int64_t k = 0; k < 2 * rows * count; ++k) carry[k] = V{};
  for (int64_t t = p.length - 1; t >= 0; --t) {
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t step = (first + r) * p.length + t, here = step * p.size;
      const Element* raw = (const Element*)p.raw + step * outputs;
      const Element* previous = t ? (const Element*)p.states + here - p.size
                                  : (const Element*)p.initial_state + (first + r) * p.size;
      for (int64_t k = 0; k < count; ++k) before[k] = token.at(previous, k);
      token.prepare(raw, (const Element*)p.decays + here, (const Element*)p.inputs + here, before);
      V* d_h = carry + r * count;
      for (int64_t k = 0; k < count; ++k) {
        d_h[k] += through[r * count + k] + token.at((const Element*)p.d_states + here, k);
        d_y[k] = -d_h[k];
        d_mixed[k] = (1 - token.lambda[k]) * d_y[k];
      }
      Element d_r[kMostRank], d_c[kMostRank], d_S[kMostRank][kMostRank];
      for (int i = 0; i < rank; ++i) {
        V sum = V{};
        for (int64_t k = 0; k < count; ++k) sum += token.u[i * count + k] * d_mixed[k];
        d_r[i] = sum_of(sum);
      }
      solve_small(token.P, true, rank, d_r);
      for (int i = 0; i < rank; ++i) {
        d_c[i] = d_r[i] * token.a[i];
        for (int j = 0; j < rank; ++j) {
          d_c[i] -= d_r[i] * token.w[j] * (token.L[i][j] - token.S[i][j]);
          d_S[i][j] = token.c[i] * d_r[i] * token.w[j];
        }
      }
      Element along[kMostRank];
      for (int i = 0; i < rank; ++i) {
        V sum = V{};
        for (int64_t k = 0; k < count; ++k) {
          const V gamma = 1 - token.lambda[k];
          V d = token.w[i] * d_mixed[k] + token.c[i] * d_r[i] * token.z[k];
          for (int j = 0; j < rank; ++j) {
            const Element below = p.product && j != i ? (j < i ? d_S[i][j] : d_S[j][i]) : 0;
            d += ((d_S[i][j] + d_S[j][i]) * gamma - below) * token.u[j * count + k];
          }
          d_u[i * count + k] = d;
          sum += d * token.u[i * count + k];
        }
        along[i] = sum_of(sum);
      }
      Element* d_raw = d_seen + r * outputs;
      for (int64_t k = 0; k < count; ++k) {
        V d_gamma = token.mixed[k] * d_y[k], d_z = d_y[k];
        for (int i = 0; i < rank; ++i) {
          const V u = token.u[i * count + k];
          d_z += token.c[i] * d_r[i] * u;
          for (int j = 0; j < rank; ++j) d_gamma += d_S[i][j] * u * token.u[j * count + k];
          const V x = token.at(raw + i * p.size, k), open = sigmoid_of(x);
          const V d_s = token.inverse[i] * (d_u[i * count + k] - along[i] * u);
          token.put(d_raw + i * p.size, k, d_s * open * (1 + x * (1 - open)));
        }
        token.put((Element*)p.d_inputs + here, k, d_h[k] + token.lambda[k] * d_z);
        token.put((Element*)p.d_decays + here, k, d_z * (token.b[k] - before[k]) - d_gamma);
        d_h[k] = -token.lambda[k] * d_z;
      }
      for (int i = 0; i < rank; ++i)
        d_raw[rank * p.size + i] = d_c[i] * token.c[i] * (1 - token.c[i] / (Element)p.most);
      std::copy(d_raw, d_raw + rank * p.size, (Element*)p.d_vectors + step * rank * p.size);
      std::copy(d_raw + rank * p.size, d_raw + outputs, (Element*)p.d_strengths + step * rank);
    }
    if (p.weight)
      multiply(rows, d_seen, outputs, outputs, p.weight, columns, (Element*)through, columns);
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < count; ++k)
      token.put((Element*)p.d_initial_state + (first + r) * p.size, k,
                carry[r * count + k] + through[r * count + k]);
  return true;
}

template <class Element> int fixed_point(const FixedPoint& p) {
  const int64_t share = (p.batch + p.threads - 1) / p.threads;
  const int64_t rows = std::min(share, kMostRows), pieces = (p.batch + rows - 1) / rows;
  const int64_t numbers = p.batch * p.length * p.size * p.size * p.rank;
  return run_pieces(pieces, numbers < kGatesPerTeam ? 1 : p.threads, [&](int64_t piece) {
    const int64_t first = piece * rows, own = std::min(rows, p.batch - first);
    return p.d_states ? fixed_point_backward<Element>(p, first, own)
                      : fixed_point_forward<Element>(p, first, own);
  });
}

}  // namespace ISA_NAMESPACE
