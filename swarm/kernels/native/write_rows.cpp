// Writes new keys and values into a pool of KV blocks.
#include <algorithm>
#include <cmath>
#include <limits>

#include "attention.h"
#include "lanes.h"
#include "parallel.h"

namespace swarm::paged {
namespace {

using namespace wide;

constexpr int64_t kRowsPerSlice = 64;

inline void put(float* to, float value) { store_one(to, value); }
inline void put(BFloat16* to, float value) { store_one(to, value); }
inline void put(Float16* to, float value) { store_one(to, value); }
inline void put(int8_t* to, float value) { *to = int8_t(std::nearbyint(value)); }

struct Target {
  int64_t at, stride;  // of one head of one position, in elements
  float* scale;        // null unless int8
};

// One position of one head.
template <class From, class To>
void copy(const From* from, To* pool, int64_t size, const Target& target) {
  float divisor = 1.0f;
  if (target.scale) {
    float most = 0.0f, sum = 0.0f;  // the sum is no number if an element is none
    for (int64_t i = 0; i < size; ++i) {
      const float value = load_one(from + i);
      most = std::max(most, std::fabs(value));
      sum += value * 0.0f;
    }
    if (sum != 0.0f) {
      *target.scale = std::numeric_limits<float>::quiet_NaN();
      for (int64_t i = 0; i < size; ++i) put(pool + target.at + i * target.stride, 0.0f);
      return;
    }
    *target.scale = most / 127.0f;
    divisor = *target.scale == 0.0f ? 1.0f : *target.scale;
  }
  To* to = pool + target.at;
  if (!target.scale)
    for (int64_t i = 0; i < size; ++i) put(to + i * target.stride, load_one(from + i));
  else
    for (int64_t i = 0; i < size; ++i) put(to + i * target.stride, load_one(from + i) / divisor);
}

template <class From, class To>
void copy_row(const Rows& rows, int64_t row, int64_t slot, bool is_key, const Pool& pool) {
  const int64_t tokens = pool.block_tokens, block = slot / tokens, offset = slot % tokens;
  const int64_t size = is_key ? pool.key_size : pool.value_size;
  To* data = static_cast<To*>(is_key ? pool.keys : pool.values);
  for (int64_t g = 0; g < pool.kv_heads; ++g) {
    const int64_t head = block * pool.kv_heads + g;
    Target target{head * size * tokens + (is_key ? offset : offset * size),
                  is_key ? tokens : 1, nullptr};
    if (pool.scales)
      target.scale = pool.scales + (is_key ? 0 : pool.blocks * pool.kv_heads * tokens) +
                     head * tokens + offset;
    const From* from = static_cast<const From*>(rows.data) + row * rows.row_stride +
                       g * rows.head_stride;
    copy(from, data, size, target);
  }
}

template <class From>
void copy_to(const Rows& rows, int64_t row, int64_t slot, bool is_key, const Pool& pool) {
  switch (pool.element) {
    case Element::kFloat32: return copy_row<From, float>(rows, row, slot, is_key, pool);
    case Element::kBFloat16: return copy_row<From, BFloat16>(rows, row, slot, is_key, pool);
    case Element::kFloat16: return copy_row<From, Float16>(rows, row, slot, is_key, pool);
    case Element::kInt8: return copy_row<From, int8_t>(rows, row, slot, is_key, pool);
  }
}

void copy_any(const Rows& rows, int64_t row, int64_t slot, bool is_key, const Pool& pool) {
  switch (rows.element) {
    case Element::kFloat32: return copy_to<float>(rows, row, slot, is_key, pool);
    case Element::kBFloat16: return copy_to<BFloat16>(rows, row, slot, is_key, pool);
    default: return copy_to<Float16>(rows, row, slot, is_key, pool);
  }
}

}  // namespace

void write_rows(const Rows& key, const Rows& value, const int64_t* slots, const Pool& pool) {
  parallel(key.count, kRowsPerSlice, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      copy_any(key, row, slots[row], true, pool);
      copy_any(value, row, slots[row], false, pool);
    }
  });
}

}  // namespace swarm::paged
