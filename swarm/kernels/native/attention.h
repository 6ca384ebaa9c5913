// Paged attention without any header of torch. The contract is in swarm/kernels/attention.py; the
// letters are those of its legend.
#pragma once

#include <cstdint>

namespace swarm::paged {

enum class Element { kFloat32, kBFloat16, kFloat16, kInt8 };

// One layer's pool: keys [P, G, D, B], values [P, G, B, W], scales [2, P, G, B] for int8.
struct Pool {
  void* keys;
  void* values;
  float* scales;
  Element element;
  int64_t blocks, kv_heads, key_size, value_size, block_tokens;
};

// Rows [R, heads, size], their last dimension dense.
struct Rows {
  const void* data;
  Element element;
  int64_t count, heads, row_stride, head_stride;
};

struct Places {
  const int32_t* table;
  int64_t table_width;
  const int32_t* owner;
  const int32_t* context;
};

struct Rule {
  float scale;
  int64_t window;
  float softcap;
  const float* sinks;
};

void write_rows(const Rows& key, const Rows& value, const int64_t* slots, const Pool& pool);

// `output` [R, H, W] dense, of the type of `q`.
void attention(const Rows& q, const Pool& pool, const Places& places, const Rule& rule,
               void* output);

}  // namespace swarm::paged
