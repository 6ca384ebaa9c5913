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

float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

constexpr int kGroupParts = kGroup * 4 / kWidth;

// The values of one group; of the last one `count` are there, and zeros follow.
struct Group {
  Floats parts[kGroupParts];
};

// Whole registers go from memory to registers: pieces of them that are put together on the stack
// would be waited for.
inline Group load_group(const void* x, Element element, int64_t begin, int64_t count) {
  constexpr int kLanes = kWidth / 4;
  Group group;
  if (count == kGroup && element == Element::kFloat32) {
    const float* const from = static_cast<const float*>(x) + begin;
    for (int p = 0; p < kGroupParts; ++p) group.parts[p] = load_floats(from + p * kLanes);
  } else if (count == kGroup) {
    const uint16_t* const from = static_cast<const uint16_t*>(x) + begin;
    for (int p = 0; p < kGroupParts; ++p) group.parts[p] = from_bfloat16s(from + p * kLanes);
  } else {
    float values[kGroup] = {};
    load_values(x, element, begin, count, values);
    for (int p = 0; p < kGroupParts; ++p) group.parts[p] = load_floats(values + p * kLanes);
  }
  return group;
}

// Magnitudes as integers, which order finite < infinite < NaN; the larger of each lane.
inline Integers larger(Integers largest, const Group& group) {
  for (const Floats& part : group.parts) {
    const Integers bits = (Integers)part & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

inline int32_t largest_lane(Integers lanes) {
#if defined(__AVX512BW__) && defined(__AVX512F__)
  return _mm512_reduce_max_epi32((__m512i)lanes);
#else
  int32_t largest = 0;
  for (int i = 0; i < kWidth / 4; ++i) largest = std::max(largest, lanes[i]);
  return largest;
#endif
}

// Rounds to even, and stores one byte each.
inline void store_bytes(Floats values, int8_t* to) {
#if defined(__AVX512BW__) && defined(__AVX512F__)
  const __m512i whole = _mm512_cvtps_epi32((__m512)values);
  _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8(whole));
#else
  for (int i = 0; i < kWidth / 4; ++i) to[i] = int8_t(int32_t(std::nearbyintf(values[i])));
#endif
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

float quantize_bytes(const void* x, Element element, int64_t depth, int64_t padded, int8_t* q,
                     float* shares) {
  constexpr int32_t kLevelsBits = 0x42fe0000;  // kByteLevels
  const int64_t groups = padded / kGroup;
  const auto group_at = [&](int64_t g) {
    return load_group(x, element, g * kGroup, std::min<int64_t>(kGroup, depth - g * kGroup));
  };
  Integers lanes = {};
  for (int64_t g = 0; g < groups; ++g) lanes = larger(lanes, group_at(g));
  const int32_t bits = largest_lane(lanes);
  const float largest = from_bits(uint32_t(bits));
  const bool finite = bits < 0x7f800000;
  if (!finite || largest < kSmallest) {
    std::memset(q, 0, size_t(padded));
    std::fill(shares, shares + groups, 1.0f);
    return finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
  }
  const Floats factor = splat(kByteLevels / largest);
  for (int64_t g = 0; g < groups; ++g) {
    Group group = group_at(g);
    for (Floats& part : group.parts) part *= factor;
    // Floats of one sign are ordered as their bits, and 2^23 of these are one doubling.
    const int32_t most = largest_lane(larger(Integers{}, group));
    const int doublings = std::clamp((kLevelsBits - most) >> 23, 0, kDoublings);
    const Floats times = splat(from_bits(uint32_t(127 + doublings) << 23));
    for (int p = 0; p < kGroupParts; ++p)
      store_bytes(group.parts[p] * times, q + g * kGroup + p * (kWidth / 4));
    shares[g] = from_bits(uint32_t(127 - doublings) << 23);
  }
  return largest / kByteLevels;
}

}  // namespace swarm
