// How a row of activations becomes integers: of 15 bits for weights of 8, of 8 for weights of 4.
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

// Of bytes: the largest magnitude, and the most that a group's values are doubled.
constexpr float kByteLevels = 127.0f;
constexpr int kDoublings = 20;

// q[k] = round to even (x[k] * (kByteLevels / largest) * 2^d), 0 from `depth` up to `padded`, where d
// is for each group of 32 the most doublings after which its values are not above kByteLevels.
// shares[g] = 2^-d. Returns the row's scale, largest / kByteLevels, or 0 or NaN as above.
float quantize_bytes(const void* x, Element element, int64_t depth, int64_t padded, int8_t* q,
                     float* shares);

}  // namespace swarm
