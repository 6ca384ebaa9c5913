// Products with weights of 4 bits: bytes times bytes, in vector registers.
#include "int4_linear.h"

#include "parallel.h"
#include "tile_int4.h"
#include "tile_linear.h"

namespace swarm {

namespace {

// Sums of so many rows and tiles stay in registers.
constexpr int kRowBlock = kWidth == 64 ? 8 : 2;
constexpr int kTileBlock = kWidth == 64 ? 2 : 1;
constexpr int64_t kRowChunk = 48;
constexpr int64_t kGroupBytes = kGroup * kTileColumns / 2;
constexpr int kSteps = kGroup / kDepth / 2;

struct Job {
  const Rows& rows;
  const GroupWeight& weight;
  const Slices& slices;
  const QuantizedBytes& q;
  int64_t groups;
};

template <int R, int T>
struct Sums {
  Integers all[R][T][kParts];
};

// One group's integer sums of R rows and T tiles.
template <int R, int T>
inline void add_products(const int8_t* x, int64_t depth, const int8_t* w, int64_t stride,
                         Sums<R, T>& sums) {
#pragma GCC unroll 4
  for (int step = 0; step < kSteps; ++step)
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      Bytes low[T], high[T];
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
        const Bytes both = (Bytes)load(w + t * stride + step * kTileStep + part * kWidth);
        low[t] = both & 15;
        high[t] = both >> 4;
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const int8_t* const at = x + r * depth + step * kDepth;
        const Integers near = four(at), far = four(at + kGroup / 2);
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
          Integers& sum = sums.all[r][t][part];
          sum = add_bytes(add_bytes(sum, low[t], near), high[t], far);
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

template <bool kMinimum, int R, int T>
void block(const Job& job, int64_t row, int64_t tile, bool fetches) {
  const GroupWeight& weight = job.weight;
  const int64_t groups = job.groups, first = row * groups;
  const int8_t* const x = job.q.values + row * weight.depth;
  Floats made[R][T][kParts] = {};
  for (int64_t g = 0; g < groups; ++g) {
    Sums<R, T> sums = {};
    if constexpr (!kMinimum)
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t)
#pragma GCC unroll 4
          for (int p = 0; p < kParts; ++p)
            sums.all[r][t][p] += -kInt4Zero * job.q.totals[first + r * groups + g];
    const int8_t* const w = weight.packed + (tile * groups + g) * kGroupBytes;
    if (fetches) fetch_ahead<T>(w, kGroupBytes, groups * kGroupBytes);
    add_products<R, T>(x + g * kGroup, weight.depth, w, groups * kGroupBytes, sums);
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
          const int64_t of_group = first + r * groups + g;
          const float share = job.q.shares[of_group];
          Floats& sum = made[r][t][p];
          sum = fused(__builtin_convertvector(sums.all[r][t][p], Floats) * splat(share), scale, sum);
          if constexpr (kMinimum)
            sum = fused(splat(job.q.sums[of_group]), minimum, sum);
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

template <bool kMinimum, int R, int T>
void rows_left(const Job& job, int64_t row, int64_t count, int64_t tile, bool fetches) {
  if (count == R) {
    block<kMinimum, R, T>(job, row, tile, fetches);
  } else if constexpr (R > 1) {
    rows_left<kMinimum, R - 1, T>(job, row, count, tile, fetches);
  }
}

template <bool kMinimum, int T>
void tiles(const Job& job, int64_t row, int64_t row_end, int64_t tile, int64_t tile_end) {
  for (; tile + T <= tile_end; tile += T)
    for (int64_t r = row; r < row_end; r += kRowBlock)
      rows_left<kMinimum, kRowBlock, T>(job, r, std::min<int64_t>(kRowBlock, row_end - r), tile, r == row);
  if constexpr (T > 1) {
    if (tile < tile_end) tiles<kMinimum, T / 2>(job, row, row_end, tile, tile_end);
  }
}

template <bool kMinimum>
void run(const Rows& rows, const GroupWeight& weight, const Slices& slices,
         const QuantizedBytes& q) {
  const Job job{rows, weight, slices, q, weight.depth / kGroup};
  over_tiles(rows.rows, weight.tiles, weight.depth, kRowChunk,
             [&](int64_t row, int64_t row_end, int64_t tile, int64_t tile_end) {
               if (row_end - row <= 2)
                 tiles<kMinimum, 1>(job, row, row_end, tile, tile_end);
               else
                 tiles<kMinimum, kTileBlock>(job, row, row_end, tile, tile_end);
             });
}

}  // namespace

void int4_linear(const Rows& rows, const GroupWeight& weight, const Slices& slices,
                 int64_t tiles_from) {
  const QuantizedBytes q = quantize_to_bytes(rows, weight.depth);
  if (rows.rows >= tiles_from && has_tiles()) {
    tile_int4_linear(rows, weight, slices, q);
  } else if (weight.minimum != nullptr) {
    run<true>(rows, weight, slices, q);
  } else {
    run<false>(rows, weight, slices, q);
  }
}

}  // namespace swarm
