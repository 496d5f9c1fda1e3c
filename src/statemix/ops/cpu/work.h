// Split a problem into independent pieces: one sequence and a range of lane tiles each.

#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "interface.h"
#include "vectors.h"

namespace ISA_NAMESPACE {

struct Work {
  int64_t sequence, batch, start, stop;  // steps start .. stop - 1 of row `batch`
  int64_t first_tile, tiles, width, blocks, lanes;
  int64_t ahead;  // steps between prefetch and use
  bool streamed;  // states and gradients bypass the caches
  bool fetched;   // gradients of gates are too many for a cache, and not streamed
  bool in_order;  // the gates of a step are one run of memory, and this piece reads all of it

  // The last tile ends at the last block. If the width does not divide the number of blocks, it
  // repeats lanes of its neighbour and computes the same numbers for them.
  int64_t lane(int64_t k) const {
    int64_t lane = (first_tile + k) * width;
    return lane + width <= blocks || blocks < width ? lane : blocks - width;
  }
};

constexpr int64_t kStreamedBytes = 8 << 20;
constexpr int64_t kPrefetchedBytes = 8 << 10;

// Copy the state of a sequence, [size, blocks] in memory, to the tiles of a piece, or back.
template <bool Partial, class S, class V>
inline void load_state(const S* from, V* tiles, const Work& work, int64_t size) {
  for (int64_t k = 0; k < work.tiles; ++k)
    for (int64_t i = 0; i < size; ++i)
      tiles[k * size + i] = load<Partial>(from + i * work.blocks + work.lane(k), work.lanes);
}
template <bool Partial, class S, class V>
inline void store_state(S* to, const V* tiles, const Work& work, int64_t size) {
  for (int64_t k = 0; k < work.tiles; ++k)
    for (int64_t i = 0; i < size; ++i)
      store<Partial>(to + i * work.blocks + work.lane(k), tiles[k * size + i], work.lanes);
}

// Prefetches the gates of a later step, some in each call. In the order of memory, hardware
// recognises the lines and fetches more by itself; then it does not matter which row the call is
// for, and where the last tile repeats lanes of its neighbour, gates of a further step come along.
template <class Element> class LaterGates {
 public:
  LaterGates(const Element* step, const Problem& problem, const Work& work)
      : step(step), next(step), problem(problem), work(work) {}
  // `count` vectors, when row i of the tile at `lane` is used.
  inline void prefetch_some(int64_t i, int64_t lane, int64_t count) {
    if (work.in_order) {
      for (int64_t j = 0; j < count; ++j, next += work.lanes) prefetch(next);
    } else {
      const Element* row = step + i * problem.gates_row + lane;
      for (int64_t j = 0; j < count; ++j) prefetch(row + j * problem.gates_gate);
    }
  }

 private:
  const Element *step, *next;
  const Problem& problem;
  const Work& work;
};

template <class Vector> struct Scratch {
  Vector* data;  // null if memory is exhausted
  explicit Scratch(int64_t count) {
    data = (Vector*)aligned_alloc(64, (count * sizeof(Vector) + 63) / 64 * 64);
  }
  ~Scratch() { free(data); }
  Scratch(const Scratch&) = delete;
};

// The fewest parts per sequence that keep all threads busy: a part reads only its own lanes of
// every time step, and reading whole rows is faster.
inline int64_t parts_per_sequence(int64_t sequences, int64_t tiles, int64_t threads) {
  int64_t parts = 1;
  while (parts < tiles && sequences * parts % threads && sequences * parts < 4 * threads) ++parts;
  return parts;
}

// Gates of a problem, or its values if channels make those more.
inline int64_t count_numbers(const Problem& problem) {
  return problem.batch * problem.length * problem.blocks *
         std::max(problem.gates_per_row, problem.channels) * (problem.gates_row ? problem.size : 1);
}

// Rows of one step follow one another without gaps. Lags have one row, and so do blocks whose rows
// are the same memory.
inline bool steps_are_runs(const Problem& problem) {
  const bool gates = problem.gates_gate == problem.blocks;
  const bool rows = problem.gates_row == problem.gates_per_row * problem.blocks;
  return gates && (rows || !problem.gates_row);
}

// Outputs are streamed if every vector is aligned and there are so many gates that outputs would
// leave the caches before they are read.
inline bool can_stream(const Problem& problem, int64_t aligned) {
  const uintptr_t addresses = (uintptr_t)problem.states | (uintptr_t)problem.wide_states |
                              (uintptr_t)problem.d_gates | (uintptr_t)problem.d_values;
  return problem.blocks % aligned == 0 && addresses % VECTOR_BYTES == 0;
}

// Far enough ahead to hide the latency of memory, near enough to stay in the cache until use. A
// gate that is prefetched in the order of memory comes a few tiles to two steps before its use.
inline int64_t steps_ahead(const Problem& problem, int64_t element_bytes) {
  const int64_t step_bytes = std::abs(problem.gates_time) * element_bytes;
  return step_bytes ? (kPrefetchedBytes + step_bytes - 1) / step_bytes : 1;
}

// Measured with two threads: they pay from 2^15 gates if the team has just worked, and from 2^16 if
// it has to be woken (docs/studies/threads.md).
constexpr int64_t kGatesPerTeam = 1 << 15;

// With `heads`, the tiles are whole heads, whose lanes exchange data.
// Run piece(number) for each number, on several threads; false from a piece means no memory.
template <class Piece> inline int run_pieces(int64_t pieces, int64_t threads, Piece piece) {
  int status = DONE;
  auto run_piece = [&](int64_t number) {
    if (!piece(number)) {
#pragma omp atomic write
      status = OUT_OF_MEMORY;
    }
  };
  // OpenMP takes longer to set up a team of one thread than the kernels for a decoding step.
  if (threads > 1) {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t number = 0; number < pieces; ++number) run_piece(number);
  } else {
    for (int64_t number = 0; number < pieces; ++number) run_piece(number);
  }
  return status;
}

inline int run(bool (*kernel)(const Problem&, const Work&), const Problem& problem, int64_t width,
               int64_t element_bytes, int64_t heads = -1) {
  const int64_t tiles = heads >= 0 ? heads : (problem.blocks + width - 1) / width;
  const bool large = count_numbers(problem) * element_bytes > kStreamedBytes;
  const int64_t tiles_per_vector = width * element_bytes < VECTOR_BYTES ? 2 : 1;
  const bool streamed = large && can_stream(problem, width * tiles_per_vector);
  // Tiles whose outputs are streamed in one vector stay together.
  const int64_t together = streamed && heads < 0 ? tiles_per_vector : 1;
  const int64_t groups = (tiles + together - 1) / together;
  const int64_t threads = count_numbers(problem) < kGatesPerTeam ? 1 : problem.threads;
  const int64_t parts = parts_per_sequence(problem.sequences, groups, threads);
  const int64_t pieces = problem.sequences * parts;
  const int64_t ahead = steps_ahead(problem, element_bytes);
  const bool in_order = parts == 1 && steps_are_runs(problem);
  return run_pieces(pieces, threads, [&](int64_t piece) {
    Work work;
    work.sequence = piece / parts;
    const int64_t part = piece % parts;
    work.first_tile = part * groups / parts * together;
    work.tiles = std::min((part + 1) * groups / parts * together, tiles) - work.first_tile;
    work.width = width;
    work.ahead = ahead;
    work.streamed = streamed;
    work.fetched = large && !streamed;
    work.in_order = in_order;
    work.blocks = problem.blocks;
    work.lanes = problem.blocks < width ? problem.blocks : width;
    work.batch = problem.cu_seqlens ? 0 : work.sequence;
    work.start = problem.cu_seqlens ? problem.cu_seqlens[work.sequence] : 0;
    work.stop = problem.cu_seqlens ? problem.cu_seqlens[work.sequence + 1] : problem.length;
    const bool done = kernel(problem, work);
    if (streamed) finish_streams();
    return done;
  });
}

}  // namespace ISA_NAMESPACE
