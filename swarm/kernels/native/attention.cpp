// Paged attention on a CPU. One task is a few rows of one sequence for one KV head; its `vectors`
// are those rows times the query heads that share the KV head. A vector walks its own context in
// tiles of kTile positions, cut at multiples of kTile whatever the row, with a running softmax.
//
// What a vector's sums are made of, and in which order, depends on its own context alone: a score
// is one chain of fma over the key's elements, an output element one chain over the positions seen.
// Tasks, blocking and threads only decide which vectors are worked on side by side.
#include "attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "lanes.h"
#include "parallel.h"

namespace swarm::paged {
namespace {

using namespace wide;

constexpr int kTile = 64;
constexpr int kGroups = kTile / kLanes;
constexpr int kSide = 4;               // vectors worked on side by side
constexpr int64_t kTaskVectors = 48;   // per task: what they share stays in the first cache
constexpr int64_t kUnpackFrom = 8;     // vectors from which a tile is turned into floats once
constexpr int64_t kSerialWork = 1 << 18;  // multiplications that one thread does in about 8 us

struct Task {
  int64_t row, rows, kv_head;
};

// Where a tile's positions lie: one pointer per kLanes of them.
template <class T>
struct Tile {
  const T* keys[kGroups];
  const T* values[kGroups];
  const float* key_scales[kGroups];
  const float* value_scales[kGroups];
  int64_t key_stride;
};

struct Range {
  int low, high;  // positions seen in a tile, [low, high)
  bool operator==(const Range& other) const { return low == other.low && high == other.high; }
};

struct Vectors {
  int64_t count, key_size, value_size;
  float* q;        // [count, D], times the scale
  float* sums;     // [count, W]
  float* scores;   // [count, kTile]; then weights
  float* carry;    // [count]: what the sums so far are multiplied by
  Range* range;    // [count]
  float* top;      // [count]
  float* totals;   // [count, kLanes]
};

template <class T, int kCount, int kUsed>
void score(const Vectors& v, const Tile<T>& tile, int64_t first, int group) {
  Lanes sums[kCount][kUsed] = {};
  for (int64_t d = 0; d < v.key_size; ++d) {
    Lanes keys[kUsed];
    for (int g = 0; g < kUsed; ++g) keys[g] = load(tile.keys[group + g] + d * tile.key_stride);
    for (int i = 0; i < kCount; ++i) {
      const Lanes q = splat(v.q[(first + i) * v.key_size + d]);
      for (int g = 0; g < kUsed; ++g) sums[i][g] = fma(q, keys[g], sums[i][g]);
    }
  }
  for (int i = 0; i < kCount; ++i)
    for (int g = 0; g < kUsed; ++g)
      store(v.scores + (first + i) * kTile + (group + g) * kLanes, sums[i][g]);
}

template <class T, int kCount>
void score_groups(const Vectors& v, const Tile<T>& tile, int64_t first, int low, int high) {
  switch (high - low) {
    case 1: return score<T, kCount, 1>(v, tile, first, low);
    case 2: return score<T, kCount, 2>(v, tile, first, low);
    case 3: return score<T, kCount, 3>(v, tile, first, low);
    default: return score<T, kCount, 4>(v, tile, first, low);
  }
}

// Scores of all vectors against the groups [low, high) of a tile.
template <class T>
void score_all(const Vectors& v, const Tile<T>& tile, int low, int high) {
  int64_t first = 0;
  for (; first + kSide <= v.count; first += kSide) score_groups<T, 4>(v, tile, first, low, high);
  switch (v.count - first) {
    case 1: return score_groups<T, 1>(v, tile, first, low, high);
    case 2: return score_groups<T, 2>(v, tile, first, low, high);
    case 3: return score_groups<T, 3>(v, tile, first, low, high);
    default: return;
  }
}

Lanes capped(Lanes scores, float softcap) {
  const Lanes twice = exponential(scores * (2.0f / softcap));
  return (1.0f - 2.0f / (twice + 1.0f)) * softcap;
}

// Scores of one vector to weights, its top and total carried on.
template <class T>
void weigh(const Vectors& v, const Tile<T>& tile, int64_t index, float softcap) {
  const IntLanes lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Range range = v.range[index];
  float* scores = v.scores + index * kTile;
  const int first = range.low / kLanes, last = (range.high + kLanes - 1) / kLanes;
  Lanes held[kGroups], best = splat(-INFINITY);
  for (int g = first; g < last; ++g) {
    Lanes here = load(scores + g * kLanes);
    if (tile.key_scales[g]) here = here * load(tile.key_scales[g]);
    if (softcap != 0.0f) here = capped(here, softcap);
    const IntLanes place = lane + g * kLanes;
    const IntLanes seen = (place >= range.low) & (place < range.high);
    held[g] = seen ? here : splat(-INFINITY);
    best = larger(best, held[g]);
  }
  const float top = std::max(v.top[index], largest(best));
  const float carry = exponential(v.top[index] - top);
  Lanes total = load(v.totals + index * kLanes) * carry;
  for (int g = first; g < last; ++g) {
    const Lanes weight = exponential(held[g] - top);
    total = total + weight;
    store(scores + g * kLanes,
          tile.value_scales[g] ? weight * load(tile.value_scales[g]) : weight);
  }
  store(v.totals + index * kLanes, total);
  v.top[index] = top;
  v.carry[index] = carry;
}

// sums[first + i, w...] = sums * carry + weights . values, over the positions of one range.
template <class T, int kCount, int kUsed>
void gather(const Vectors& v, const Tile<T>& tile, int64_t first, int64_t w) {
  Lanes sums[kCount][kUsed];
  for (int i = 0; i < kCount; ++i)
    for (int n = 0; n < kUsed; ++n)
      sums[i][n] =
          load(v.sums + (first + i) * v.value_size + w + n * kLanes) * v.carry[first + i];
  const Range range = v.range[first];
  for (int j = range.low; j < range.high; ++j) {
    const T* row = tile.values[j / kLanes] + (j % kLanes) * v.value_size + w;
    Lanes values[kUsed];
    for (int n = 0; n < kUsed; ++n) values[n] = load(row + n * kLanes);
    for (int i = 0; i < kCount; ++i) {
      const Lanes weight = splat(v.scores[(first + i) * kTile + j]);
      for (int n = 0; n < kUsed; ++n) sums[i][n] = fma(weight, values[n], sums[i][n]);
    }
  }
  for (int i = 0; i < kCount; ++i)
    for (int n = 0; n < kUsed; ++n)
      store(v.sums + (first + i) * v.value_size + w + n * kLanes, sums[i][n]);
}

// The last elements of a value whose size is no multiple of kLanes.
template <class T>
void gather_tail(const Vectors& v, const Tile<T>& tile, int64_t index, int64_t w) {
  const Range range = v.range[index];
  for (; w < v.value_size; ++w) {
    float total = v.sums[index * v.value_size + w] * v.carry[index];
    for (int j = range.low; j < range.high; ++j) {
      const T* row = tile.values[j / kLanes] + (j % kLanes) * v.value_size;
      total = fma(v.scores[index * kTile + j], load_one(row + w), total);
    }
    v.sums[index * v.value_size + w] = total;
  }
}

template <class T, int kCount>
void gather_some(const Vectors& v, const Tile<T>& tile, int64_t first) {
  int64_t w = 0;
  for (; w + 4 * kLanes <= v.value_size; w += 4 * kLanes) gather<T, kCount, 4>(v, tile, first, w);
  for (; w + kLanes <= v.value_size; w += kLanes) gather<T, kCount, 1>(v, tile, first, w);
  if (w < v.value_size)
    for (int i = 0; i < kCount; ++i) gather_tail(v, tile, first + i, w);
}

template <class T>
void gather_all(const Vectors& v, const Tile<T>& tile) {
  for (int64_t first = 0; first < v.count;) {
    int side = 1;
    while (side < kSide && first + side < v.count && v.range[first + side] == v.range[first])
      ++side;
    if (v.range[first].low < v.range[first].high) {
      switch (side) {
        case 1: gather_some<T, 1>(v, tile, first); break;
        case 2: gather_some<T, 2>(v, tile, first); break;
        case 3: gather_some<T, 3>(v, tile, first); break;
        default: gather_some<T, 4>(v, tile, first); break;
      }
    }
    first += side;
  }
}

// Asks for the values while the scores are computed.
template <class T>
void fetch_values(const Vectors& v, const Tile<T>& tile, int low, int high) {
  const int64_t bytes = kLanes * v.value_size * int64_t(sizeof(T));
  for (int g = low; g < high; ++g)
    for (int64_t at = 0; at < bytes; at += 64)
      __builtin_prefetch(reinterpret_cast<const char*>(tile.values[g]) + at);
}

template <class T>
void walk_tile(const Vectors& v, const Tile<T>& tile, int low, int high, float softcap) {
  if (v.count < kUnpackFrom) fetch_values(v, tile, low, high);
  score_all(v, tile, low, high);
  for (int64_t i = 0; i < v.count; ++i)
    if (v.range[i].low < v.range[i].high) weigh(v, tile, i, softcap);
  gather_all(v, tile);
}

template <class T>
Tile<T> tile_at(const Pool& pool, const int32_t* line, int64_t start, int64_t kv_head, int low,
                int high) {
  Tile<T> tile = {};
  tile.key_stride = pool.block_tokens;
  for (int g = low; g < high; ++g) {
    const int64_t position = start + g * kLanes, offset = position % pool.block_tokens;
    const int64_t head = line[position / pool.block_tokens] * pool.kv_heads + kv_head;
    tile.keys[g] = static_cast<const T*>(pool.keys) +
                   head * pool.key_size * pool.block_tokens + offset;
    tile.values[g] = static_cast<const T*>(pool.values) +
                     (head * pool.block_tokens + offset) * pool.value_size;
    if (pool.scales) {
      tile.key_scales[g] = pool.scales + head * pool.block_tokens + offset;
      tile.value_scales[g] =
          tile.key_scales[g] + pool.blocks * pool.kv_heads * pool.block_tokens;
    }
  }
  return tile;
}

// The same tile as floats in `room` [D + W, kTile].
template <class T>
Tile<float> unpacked(const Tile<T>& tile, const Vectors& v, int low, int high, float* room) {
  Tile<float> floats = {};
  floats.key_stride = kTile;
  float* values = room + v.key_size * kTile;
  for (int g = low; g < high; ++g) {
    for (int64_t d = 0; d < v.key_size; ++d)
      store(room + d * kTile + g * kLanes, load(tile.keys[g] + d * tile.key_stride));
    floats.keys[g] = room + g * kLanes;
    float* to = values + g * kLanes * v.value_size;
    const int64_t count = kLanes * v.value_size;
    for (int64_t i = 0; i < count; i += kLanes) store(to + i, load(tile.values[g] + i));
    floats.values[g] = to;
    floats.key_scales[g] = tile.key_scales[g];
    floats.value_scales[g] = tile.value_scales[g];
  }
  return floats;
}

struct Call {
  const Rows& q;
  const Pool& pool;
  const Places& places;
  const Rule& rule;
  void* output;
  int64_t group;  // query heads per KV head
};

// Calls body(T{}) with the type of rows.
template <class Body>
void typed(Element element, Body&& body) {
  switch (element) {
    case Element::kFloat32: return body(float{});
    case Element::kBFloat16: return body(BFloat16{});
    default: return body(Float16{});
  }
}

// A thread's memory for one task after another.
struct Room {
  std::vector<float> floats;
  std::vector<Range> ranges;
  float* unpack = nullptr;

  Vectors vectors(int64_t count, int64_t key_size, int64_t value_size) {
    const int64_t each = key_size + value_size + kTile + 2 + kLanes;
    const int64_t needed = count * each + (key_size + value_size) * kTile;
    if (int64_t(floats.size()) < needed) floats.resize(needed);
    if (int64_t(ranges.size()) < count) ranges.resize(count);
    Vectors v{count, key_size, value_size};
    v.q = floats.data();
    v.sums = v.q + count * key_size;
    v.scores = v.sums + count * value_size;
    v.totals = v.scores + count * kTile;
    v.carry = v.totals + count * kLanes;
    v.top = v.carry + count;
    v.range = ranges.data();
    unpack = v.top + count;
    return v;
  }
};

int64_t first_seen(const Rule& rule, int64_t context) {
  return rule.window ? std::max<int64_t>(0, context - rule.window) : 0;
}

void begin(const Call& call, const Task& task, Vectors& v) {
  typed(call.q.element, [&](auto type) {
    const auto* data = static_cast<const decltype(type)*>(call.q.data);
    for (int64_t i = 0; i < v.count; ++i) {
      const int64_t row = task.row + i / call.group;
      const int64_t head = task.kv_head * call.group + i % call.group;
      const auto* q = data + row * call.q.row_stride + head * call.q.head_stride;
      for (int64_t d = 0; d < v.key_size; d += kLanes) {
        const int64_t left = v.key_size - d;
        store_some(v.q + i * v.key_size + d, load_some(q + d, left) * call.rule.scale, left);
      }
    }
  });
  std::fill(v.top, v.top + v.count, -INFINITY);
  std::fill(v.sums, v.sums + v.count * v.value_size, 0.0f);
  std::fill(v.totals, v.totals + v.count * kLanes, 0.0f);
}

// What the sums of one vector are to be multiplied by.
float final_factor(const Call& call, const Vectors& v, int64_t index, int64_t head) {
  const float total = sum(load(v.totals + index * kLanes));
  if (!call.rule.sinks) return 1.0f / total;
  const float sink = call.rule.sinks[head], top = std::max(v.top[index], sink);
  const float factor = exponential(v.top[index] - top);
  return factor / fma(total, factor, exponential(sink - top));
}

void finish(const Call& call, const Task& task, const Vectors& v) {
  typed(call.q.element, [&](auto type) {
    auto* output = static_cast<decltype(type)*>(call.output);
    for (int64_t i = 0; i < v.count; ++i) {
      const int64_t row = task.row + i / call.group;
      const int64_t head = task.kv_head * call.group + i % call.group;
      const float factor = final_factor(call, v, i, head);
      auto* to = output + (row * call.q.heads + head) * v.value_size;
      for (int64_t w = 0; w < v.value_size; w += kLanes) {
        const int64_t left = v.value_size - w;
        store_some(to + w, load_some(v.sums + i * v.value_size + w, left) * factor, left);
      }
    }
  });
}

template <class T>
void run_task(const Call& call, const Task& task, Room& room) {
  Vectors v = room.vectors(task.rows * call.group, call.pool.key_size, call.pool.value_size);
  begin(call, task, v);
  const int32_t* context = call.places.context + task.row;
  const int32_t* line =
      call.places.table + call.places.owner[task.row] * call.places.table_width;
  const auto [least, most] = std::minmax_element(context, context + task.rows);
  const int64_t from = first_seen(call.rule, *least), to = *most;
  for (int64_t start = from / kTile * kTile; start < to; start += kTile) {
    const auto clipped = [&](int64_t at) { return int(std::clamp<int64_t>(at - start, 0, kTile)); };
    for (int64_t i = 0; i < v.count; ++i) {
      const int64_t seen = context[i / call.group];
      v.range[i] = {clipped(first_seen(call.rule, seen)), clipped(seen)};
    }
    const int low = clipped(from) / kLanes, high = (clipped(to) + kLanes - 1) / kLanes;
    const auto tile = tile_at<T>(call.pool, line, start, task.kv_head, low, high);
    if (v.count < kUnpackFrom || std::is_same_v<T, float>)
      walk_tile(v, tile, low, high, call.rule.softcap);
    else
      walk_tile(v, unpacked(tile, v, low, high, room.unpack), low, high, call.rule.softcap);
  }
  finish(call, task, v);
}

void run_one(const Call& call, const Task& task, Room& room) {
  switch (call.pool.element) {
    case Element::kFloat32: return run_task<float>(call, task, room);
    case Element::kBFloat16: return run_task<BFloat16>(call, task, room);
    case Element::kFloat16: return run_task<Float16>(call, task, room);
    case Element::kInt8: return run_task<int8_t>(call, task, room);
  }
}

// Rows of one sequence that stand side by side go together, the longest contexts first.
std::vector<Task> tasks_of(const Call& call) {
  const int64_t limit = std::max<int64_t>(1, kTaskVectors / call.group);
  std::vector<Task> tasks;
  for (int64_t row = 0; row < call.q.count;) {
    int64_t stop = row + 1;
    while (stop < call.q.count && stop - row < limit &&
           call.places.owner[stop] == call.places.owner[row])
      ++stop;
    for (int64_t g = 0; g < call.pool.kv_heads; ++g) tasks.push_back({row, stop - row, g});
    row = stop;
  }
  std::stable_sort(tasks.begin(), tasks.end(), [&](const Task& a, const Task& b) {
    return call.places.context[a.row] * a.rows > call.places.context[b.row] * b.rows;
  });
  return tasks;
}

int64_t work_of(const Call& call) {
  int64_t seen = 0;
  for (int64_t row = 0; row < call.q.count; ++row)
    seen += call.places.context[row] - first_seen(call.rule, call.places.context[row]);
  return seen * call.q.heads * (call.pool.key_size + call.pool.value_size);
}

}  // namespace

void attention(const Rows& q, const Pool& pool, const Places& places, const Rule& rule,
               void* output) {
  const Call call{q, pool, places, rule, output, q.heads / pool.kv_heads};
  const std::vector<Task> tasks = tasks_of(call);
  const int threads = work_of(call) < kSerialWork ? 1 : thread_count();
  std::atomic<size_t> next{0};
  parallel(threads, 1, [&](int64_t, int64_t) {
    static thread_local Room room;
    for (size_t i = next++; i < tasks.size(); i = next++) run_one(call, tasks[i], room);
  });
}

}  // namespace swarm::paged
