// Linear layers on packed integer weights. Shapes: R rows, K inputs, N outputs.
//
// A row's result does not depend on the other rows, on its place, or on how threads split the work:
// its integers are rounded from that row alone, sums of integers have no order, and each float
// expression is written once, in one order.
#pragma once

#include <cstdint>

namespace swarm {

enum class Element { kFloat32, kBfloat16 };

// One slice of the outputs: `columns` of them, [R, columns], from tile `tile` on.
struct Slice {
  void* out;
  int64_t columns;
  int64_t tile;
};

struct Rows {
  const void* x;  // [R, K]
  Element element;
  int64_t rows;
  int64_t depth;  // K
};

struct Slices {
  const Slice* slices;
  int64_t count;
};

// Groups of 32 inputs, depth a multiple of 32 and at least K. packed [tiles, depth / 32, steps, 16,
// 4]: 8 steps of 8 bits, or 4 of twice 4 bits (step s in the low halves, step s + 4 in the high).
// scale and minimum (or null) [tiles, depth / 32, 16] float16; bias (or null) [tiles, 16].
struct GroupWeight {
  const int8_t* packed;
  const uint16_t* scale;
  const uint16_t* minimum;
  const float* bias;
  int64_t tiles;
  int64_t depth;
  int bits;
};

// With 8 bits, out[r, n] = (sum over groups, first to last, of float(sum of q w) * scale) * scale[r] +
// bias[n], where q and scale[r] come from `quantize_row`.
//
// With 4 bits q, share and scale[r] come from `quantize_bytes`. Sums go on over groups, first to last,
// by one multiply-add with one rounding for float(sum of q w) * share * scale and, with minimums, one
// more for float(sum of q) * share * minimum; w without minimums counts from -8. Products with a
// share, which is a power of two, are exact.
//
// `tiles_from`: rows from which the processor's matrix tiles are used, where it has them.
void group_linear(const Rows& rows, const GroupWeight& weight, const Slices& slices,
                  int64_t tiles_from);

}  // namespace swarm
