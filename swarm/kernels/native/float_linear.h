// Linear layers on float weights whose rows do not depend on their company.
#pragma once

#include "linear.h"

namespace swarm {

// float32: packed [tiles, depth, 16] float32. bfloat16: packed [tiles, depth / 32, 16, 16, 2], pairs
// of neighbouring inputs of 16 outputs, the last inputs filled up with zeros. bias (or null)
// [tiles, 16] float32.
struct FloatWeight {
  const void* packed;
  const float* bias;
  int64_t tiles;
  int64_t depth;
};

// out[r, n] = sum over k, first to last, of x[r, k] * w[n, k], + bias[n]: one chain of multiply-adds
// in float32 for each output, whatever the other rows are. With `bfloat16` weights and rows the sum
// is the matrix tiles' own, which takes pairs of products in the same order for every row; only where
// `has_tiles`.
void float_linear(const Rows& rows, const FloatWeight& weight, const Slices& slices);

void tile_float_linear(const Rows& rows, const FloatWeight& weight, const Slices& slices);

}  // namespace swarm
