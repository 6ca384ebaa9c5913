// How a row of activations becomes integers of 15 bits.
#pragma once

#include <cstdint>

#include "linear.h"

namespace swarm {

// Largest magnitude: two bytes' worth, of which a reference can multiply each in float32 exactly.
constexpr float kLevels = 127.0f * 128.0f;

// Rows whose largest value is below this are taken as zero: kLevels / largest would not be finite.
constexpr float kSmallest = 0x1p-100f;

// q[k] = round to even (x[k] * (kLevels / largest)), 0 from `depth` up to `padded`, a multiple of
// 4. Of each four the middle two change places, as the kernels multiply even and odd bytes of weights.
// Returns the row's scale, largest / kLevels; 0 for a row of (nearly) zeros, and NaN when any value
// is not finite, so that the whole output row says so.
float quantize_row(const void* x, Element element, int64_t depth, int64_t padded, int16_t* q);

}  // namespace swarm
