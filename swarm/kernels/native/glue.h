// What stands between the linears and the attention of a decoder layer, one call each: RMS norm,
// rotary position embedding and the gate of an MLP. Every row by itself, in one order.
#pragma once

#include <cstdint>

namespace swarm::glue {

enum class Element { kFloat32, kBFloat16, kFloat16 };

// How the norm's weight is applied: to the normed row rounded to its type, before it is rounded, or
// as 1 + weight before it is rounded.
enum class Weighing { kRounded = 0, kExact = 1, kPlusOne = 2 };

struct Norm {
  const void* weight;  // [E] or null
  float epsilon;
  Weighing weighing;
};

// x and output [rows, size]
void rms_norm(const void* x, Element element, int64_t rows, int64_t size, const Norm& norm,
              void* output);

enum class Gate { kSilu = 0, kGeluTanh = 1 };

// output = act(gate) * up, each of `count` elements
void gated(const void* gate, const void* up, Element element, int64_t count, Gate act,
           void* output);

// Heads [S, heads, T, D] with strides in elements, D dense; cos and sin [S, T, turned].
struct Heads {
  const void* data;
  int64_t heads, sequence_stride, head_stride, token_stride;
  void* output;  // [S, T, heads, D] dense
};
struct Turn {
  const void* cos;
  const void* sin;
  int64_t sequences, tokens, size, turned;
  int64_t cos_sequence_stride;  // 0 where all sequences share them
};
void rotate(const Heads& heads, const Turn& turn, Element element);

}  // namespace swarm::glue
