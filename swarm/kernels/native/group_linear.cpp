#include <algorithm>

#include "int4_linear.h"
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

template <int R, int T>
inline void add_group(const int16_t* x, int64_t depth, const int8_t* w, int64_t stride,
                      Sums<R, T>& sums) {
#pragma GCC unroll 8
  for (int step = 0; step < kGroup / kDepth; ++step)
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      Bits loaded[T];
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t)
        loaded[t] = load(w + t * stride + step * kTileStep + part * kWidth);
#pragma GCC unroll 2
      for (int odd = 0; odd < 2; ++odd) {  // one load is the even inputs and the odd ones
        const int16_t* const at = x + step * kDepth + odd * 2;
        Words weights[T];
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t)
          weights[t] = odd ? (Words)loaded[t] >> 8 : (Words)(loaded[t] << 8) >> 8;
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

template <int R, int T>
void block(const Job& job, int64_t row, int64_t tile, bool fetches) {
  const GroupWeight& weight = job.weight;
  const int64_t depth = weight.depth, groups = depth / kGroup;
  constexpr int64_t kGroupBytes = kGroup * kTileColumns;
  const int16_t* const x = job.q.values + row * depth;
  Floats made[R][T][kParts] = {};
  for (int64_t g = 0; g < groups; ++g) {
    Sums<R, T> sums = {};
    const int8_t* const w = weight.packed + (tile * groups + g) * kGroupBytes;
    if (fetches) fetch_ahead<T>(w, kGroupBytes, groups * kGroupBytes);
    add_group<R, T>(x + g * kGroup, depth, w, groups * kGroupBytes, sums);
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t)
#pragma GCC unroll 4
      for (int p = 0; p < kParts; ++p) {
        const int64_t at = ((tile + t) * groups + g) * kTileColumns + p * (kWidth / 4);
        const Floats scale = from_float16s(weight.scale + at);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          Floats& sum = made[r][t][p];
          sum = sum + __builtin_convertvector(sums.all[r][t][p], Floats) * scale;
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

template <int R, int T>
void rows_left(const Job& job, int64_t row, int64_t count, int64_t tile, bool fetches) {
  if (count == R) {
    block<R, T>(job, row, tile, fetches);
  } else if constexpr (R > 1) {
    rows_left<R - 1, T>(job, row, count, tile, fetches);
  }
}

template <int T>
void tiles(const Job& job, int64_t row, int64_t row_end, int64_t tile, int64_t tile_end) {
  for (; tile + T <= tile_end; tile += T)
    for (int64_t r = row; r < row_end; r += kRowBlock)
      rows_left<kRowBlock, T>(job, r, std::min<int64_t>(kRowBlock, row_end - r), tile, r == row);
  if constexpr (T > 1) {
    if (tile < tile_end) tiles<T / 2>(job, row, row_end, tile, tile_end);
  }
}

void run(const Rows& rows, const GroupWeight& weight, const Slices& slices, const Quantized& q) {
  const Job job{rows, weight, slices, q};
  over_tiles(rows.rows, weight.tiles, weight.depth, kRowChunk,
             [&](int64_t row, int64_t row_end, int64_t tile, int64_t tile_end) {
               if (row_end - row <= 2)
                 tiles<1>(job, row, row_end, tile, tile_end);
               else
                 tiles<kTileBlock>(job, row, row_end, tile, tile_end);
             });
}

}  // namespace

void group_linear(const Rows& rows, const GroupWeight& weight, const Slices& slices,
                  int64_t tiles_from) {
  if (weight.bits == 4) return int4_linear(rows, weight, slices, tiles_from);
  const Quantized q = quantize(rows, weight.depth);
  if (rows.rows >= tiles_from && has_tiles()) {
    tile_linear(rows, weight, slices, q);
  } else {
    run(rows, weight, slices, q);
  }
}

}  // namespace swarm
