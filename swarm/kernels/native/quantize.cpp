#include "quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "vectors.h"

namespace swarm {

namespace {

constexpr int64_t kPiece = 256;  // values held on the stack at a time; a multiple of kDepth

void load_values(const void* x, Element element, int64_t begin, int64_t count, float* out) {
  if (element == Element::kFloat32) {
    std::memcpy(out, static_cast<const float*>(x) + begin, size_t(count) * 4);
    return;
  }
  const uint16_t* bits = static_cast<const uint16_t*>(x) + begin;
  for (int64_t i = 0; i < count; ++i) out[i] = from_bfloat16(bits[i]);
}

// Of the values' magnitudes as integers, which order finite < infinite < NaN.
uint32_t largest_bits(const void* x, Element element, int64_t depth) {
  float piece[kPiece];
  uint32_t largest = 0;
  for (int64_t begin = 0; begin < depth; begin += kPiece) {
    const int64_t count = std::min(kPiece, depth - begin);
    load_values(x, element, begin, count, piece);
    for (int64_t i = 0; i < count; ++i) {
      uint32_t bits;
      std::memcpy(&bits, &piece[i], 4);
      bits &= 0x7fffffffu;
      largest = bits > largest ? bits : largest;
    }
  }
  return largest;
}

}  // namespace

float quantize_row(const void* x, Element element, int64_t depth, int64_t padded, int16_t* q) {
  const uint32_t bits = largest_bits(x, element, depth);
  float largest;
  std::memcpy(&largest, &bits, 4);
  const bool finite = bits < 0x7f800000u;
  if (!finite || largest < kSmallest) {
    std::memset(q, 0, size_t(padded) * 2);
    return finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  const float factor = kLevels / largest;
  float piece[kPiece];
  int16_t whole[kPiece];
  for (int64_t begin = 0; begin < padded; begin += kPiece) {
    const int64_t stop = std::min(kPiece, padded - begin);
    const int64_t count = std::max<int64_t>(0, std::min(stop, depth - begin));
    load_values(x, element, begin, count, piece);
    std::fill(piece + count, piece + stop, 0.0f);
    for (int64_t i = 0; i < stop; ++i)
      whole[i] = int16_t(int32_t(std::nearbyintf(piece[i] * factor)));
    for (int64_t i = 0; i < stop; i += kDepth) {
      int16_t* const four = q + begin + i;
      four[0] = whole[i], four[1] = whole[i + 2], four[2] = whole[i + 1], four[3] = whole[i + 3];
    }
  }
  return largest / kLevels;
}

}  // namespace swarm
