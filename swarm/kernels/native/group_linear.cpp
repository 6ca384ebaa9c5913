#include <algorithm>

#include "linear.h"
#include "linear_parts.h"
#include "parallel.h"
#include "tile_linear.h"
#include "vectors.h"

namespace swarm {

namespace {

// Integer and float sums of so many rows and tiles stay in registers.
constexpr int kRowBlock = kWidth == 64 ? 6 : 2;
constexpr int kTileBlock = kWidth == 64 ? 2 : 1;
constexpr int32_t kInt4Zero = 8;

constexpr int64_t kRowChunk = 48;

struct Job {
  const Rows& rows;
  const GroupWeight& weight;
  const Slices& slices;
  const Quantized& q;
};

template <int R, int T>
struct Sums {
  Integers all[R][T][kParts];
};

// One load of weights is two pairs of 8 bits for each lane, or four of 4 bits.
template <int kBits>
inline Words words(Bits both, int i) {
  if constexpr (kBits == 8) return i == 0 ? (Words)(both << 8) >> 8 : (Words)both >> 8;
  if (i == 3) return (Words)(both >> 12);
  return (Words)((i == 0 ? both : both >> (i == 1 ? 8 : 4)) & 15);
}

template <int kBits, int R, int T>
inline void add_group(const int16_t* x, int64_t depth, const int8_t* w, int64_t stride,
                      Sums<R, T>& sums) {
  constexpr int kSteps = kGroup / kDepth / (kBits == 4 ? 2 : 1);
#pragma GCC unroll 8
  for (int step = 0; step < kSteps; ++step)
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      Bits loaded[T];
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t)
        loaded[t] = load(w + t * stride + step * kTileStep + part * kWidth);
#pragma GCC unroll 4
      for (int i = 0; i < (kBits == 4 ? 4 : 2); ++i) {
        // Even words of the near step, odd ones, and the same of the step half a group away.
        const int16_t* const at = x + step * kDepth + (i & 1) * 2 + (i >> 1) * (kGroup / 2);
        Words weights[T];
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) weights[t] = words<kBits>(loaded[t], i);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const Words values = pair(at + r * depth);
#pragma GCC unroll 4
          for (int t = 0; t < T; ++t)
            sums.all[r][t][part] = add_products(sums.all[r][t][part], weights[t], values);
        }
      }
    }
}

void finish(const Job& job, const float* made, int64_t row, int64_t tile) {
  const float scale = job.q.scales[row];
  float values[kTileColumns];
  for (int c = 0; c < kTileColumns; ++c) values[c] = made[c] * scale;
  if (job.weight.bias != nullptr)
    for (int c = 0; c < kTileColumns; ++c) values[c] += job.weight.bias[tile * kTileColumns + c];
  store(values, target_of(job.slices, tile), job.rows.element, row);
}

template <int kBits, bool kMinimum, int R, int T>
void block(const Job& job, int64_t row, int64_t tile) {
  const GroupWeight& weight = job.weight;
  const int64_t depth = weight.depth, groups = depth / kGroup;
  constexpr int64_t kGroupBytes = kGroup * kTileColumns * kBits / 8;
  constexpr bool kCounts = kBits == 4 || kMinimum;  // whether a group's sum of q is needed
  const int16_t* const x = job.q.values + row * depth;
  Floats made[R][T][kParts] = {};
  for (int64_t g = 0; g < groups; ++g) {
    Sums<R, T> sums = {};
    if constexpr (kCounts && !kMinimum)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t)
#pragma GCC unroll 4
          for (int p = 0; p < kParts; ++p)
            sums.all[r][t][p] += -kInt4Zero * job.q.totals[(row + r) * groups + g];
    add_group<kBits, R, T>(x + g * kGroup, depth,
                           weight.packed + (tile * groups + g) * kGroupBytes,
                           groups * kGroupBytes, sums);
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) {
        const int64_t at = ((tile + t) * groups + g) * kTileColumns + p * (kWidth / 4);
        const Floats scale = from_float16s(weight.scale + at);
        Floats minimum = {};
        if constexpr (kMinimum) minimum = from_float16s(weight.minimum + at);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          Floats& sum = made[r][t][p];
          sum = sum + __builtin_convertvector(sums.all[r][t][p], Floats) * scale;
          if constexpr (kMinimum)
            sum = sum + splat(float(job.q.totals[(row + r) * groups + g])) * minimum;
        }
      }
  }
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) {
      float plain[kTileColumns];
      std::memcpy(plain, made[r][t], sizeof(plain));
      finish(job, plain, row + r, tile + t);
    }
}

template <int kBits, bool kMinimum, int R, int T>
void rows_left(const Job& job, int64_t row, int64_t count, int64_t tile) {
  if (count == R) {
    block<kBits, kMinimum, R, T>(job, row, tile);
  } else if constexpr (R > 1) {
    rows_left<kBits, kMinimum, R - 1, T>(job, row, count, tile);
  }
}

template <int kBits, bool kMinimum, int T>
void tiles(const Job& job, int64_t row, int64_t row_end, int64_t tile, int64_t tile_end) {
  for (; tile + T <= tile_end; tile += T)
    for (int64_t r = row; r < row_end; r += kRowBlock)
      rows_left<kBits, kMinimum, kRowBlock, T>(
          job, r, std::min<int64_t>(kRowBlock, row_end - r), tile);
  if constexpr (T > 1) {
    if (tile < tile_end) tiles<kBits, kMinimum, T / 2>(job, row, row_end, tile, tile_end);
  }
}

template <int kBits, bool kMinimum>
void run(const Rows& rows, const GroupWeight& weight, const Slices& slices, const Quantized& q) {
  const Job job{rows, weight, slices, q};
  over_tiles(rows.rows, weight.tiles, weight.depth, kRowChunk,
             [&](int64_t row, int64_t row_end, int64_t tile, int64_t tile_end) {
               tiles<kBits, kMinimum, kTileBlock>(job, row, row_end, tile, tile_end);
             });
}

}  // namespace

void group_linear(const Rows& rows, const GroupWeight& weight, const Slices& slices,
                  int64_t tiles_from) {
  const Quantized q = quantize(rows, weight.depth);
  if (rows.rows >= tiles_from && has_tiles()) {
    tile_linear(rows, weight, slices, q);
  } else if (weight.bits == 8) {
    run<8, false>(rows, weight, slices, q);
  } else if (weight.minimum != nullptr) {
    run<4, true>(rows, weight, slices, q);
  } else {
    run<4, false>(rows, weight, slices, q);
  }
}

}  // namespace swarm
