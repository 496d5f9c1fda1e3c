// The plain C interface between Python (ctypes) and the kernels. Mirrored in loader.py.
#pragma once
#include <cstdint>

// Increase with every change below. Python then rejects a library built from older sources (as in
// an editable installation after an update) instead of passing arguments that it misreads.
constexpr int64_t kInterfaceVersion = 8;

enum Family {
  SOFTMAX = 0,
  SIGMOID = 1,
  RELU = 2,
  SIGNED = 3,
  TANH = 4,
  NONE = 5,
  HOUSEHOLDER = 6,  // of blocks
  GIVEN = 7
};
// Return value of an exported function.
enum Status { DONE = 0, UNKNOWN = 1, OUT_OF_MEMORY = 2 };
enum Element { FLOAT32 = 0, FLOAT64 = 1, BFLOAT16 = 2 };

// Strides count elements. Blocks (or channels) are innermost with stride 1 in every tensor. Initial
// and final states and their gradients are float32, or float64 if the elements are; so are the
// states that the backward reads. All other tensors hold elements. In the low-rank scan, `blocks`
// is the number of entries of a head and `size` the number of heads.
struct Problem {
  int64_t batch, length, blocks, size;
  int64_t channels;           // of values, or 0 if they have no axis of channels
  int64_t gates_per_row;      // size + 1, or size if given, or 1 + 2 rank
  int64_t sequences;          // length of cu_seqlens minus one, or batch
  const int64_t* cu_seqlens;  // null: every batch row is one sequence
  int64_t family, element, threads;
  double inverse_temperature;  // multiplies raw gates; ignored by GIVEN

  const void* gates;  // [batch, length, (row,) gate, blocks]
  int64_t gates_batch, gates_time, gates_row, gates_gate;
  const void* values;  // [batch, length, (row,) (channel,) blocks]
  int64_t values_batch, values_time, values_row, values_channel;
  const void* initial_state;  // [sequences, size, (channel,) blocks], contiguous
  void* states;               // [batch, length, (row,) (channel,) blocks], contiguous
  void* wide_states;          // states for the backward, or null if those above serve
  void* final_state;          // [sequences, size, (channel,) blocks], contiguous

  const void* d_states;  // like values
  int64_t d_states_batch, d_states_time, d_states_row, d_states_channel;
  const void* d_final_state;  // like final_state
  void* d_gates;              // like gates, contiguous
  void* d_values;             // like values, contiguous
  void* d_initial_state;      // like initial_state
};

// The scan of Mamba. All tensors are contiguous and hold float32 or float64. Without d_outputs, the
// forward pass is meant.
struct SelectiveScan {
  int64_t batch, length, columns, channels;
  int64_t parts;  // pieces of the channels, which threads share
  int64_t element, threads;
  const void* steps;          // [batch, length, channels]
  const void* rates;          // [columns, channels]
  const void* inputs;         // [batch, length, channels]
  const void* b;              // [batch, length, columns]
  const void* c;              // likewise
  const void* initial_state;  // [batch, columns, channels]
  void* outputs;              // [batch, length, channels]
  void* final_state;          // [batch, columns, channels]

  const void* d_outputs;      // like outputs
  const void* d_final_state;  // like final_state
  void* d_steps;              // like steps
  void* d_rates;              // [batch, columns, channels]
  void* d_inputs;             // like inputs
  void* d_b;                  // [parts, batch, length, columns]
  void* d_c;                  // likewise
  void* d_initial_state;      // like initial_state
};

// The fixed point of FPRNN, token by token. All tensors are contiguous and hold float32 or float64.
// Without d_states, the forward pass is meant.
struct FixedPoint {
  int64_t batch, length, size, rank;
  int64_t product;  // 1 for a product of reflections, 0 for a sum
  int64_t element, threads;
  double most;  // of the strengths
  // Panels of 32 columns: forward from the state to what the mixer sees, backward transposed. Null
  // if the mixer does not see the state.
  const void* weight;
  const void* decays;         // [batch, length, size]
  const void* inputs;         // likewise
  const void* initial_state;  // [batch, size]
  const void* vectors;        // [batch, length, rank, size], without the part of the state
  const void* strengths;      // [batch, length, rank], likewise
  void* raw;                  // [batch, length, rank (size + 1)], with it
  void* states;               // [batch, length, size]

  const void* d_states;   // like states
  void* d_vectors;        // like vectors
  void* d_strengths;      // like strengths
  void* d_decays;         // like decays
  void* d_inputs;         // like inputs
  void* d_initial_state;  // like initial_state
};
