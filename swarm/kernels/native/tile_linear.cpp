// A tile instruction multiplies 16 rows of 64 bytes with 64 bytes of 16 columns. An activation of 15
// bits is high * 128 + low, which go in as two tiles of bytes. Their sums are 32-bit integers, stored
// apart before they are scaled, so that they are the integers that they are everywhere else.
//
// While the tiles work on a group, the sums of the one before the last are scaled and added.
#include "tile_linear.h"

#if defined(__x86_64__)
#include "tile_shapes.h"
#endif

#ifdef SWARM_TILES

#include <sys/syscall.h>
#include <unistd.h>

#include <vector>

namespace swarm {

namespace {

constexpr int kTileRows = 16;
constexpr int64_t kSums = 1024;             // bytes of a tile of sums
constexpr int64_t kPanelBytes = 1 << 20;    // of rows that share one pass: half of a second cache
constexpr int64_t kPanelRows = 128;
constexpr int64_t kPair = 2;                // tiles of outputs that share a span of activations

// Groups that are done before the next row tile comes.
constexpr int64_t kSpan = 32;

// Tiles 0 to 3 are sums, 4 and 5 high and low activations, 6 and 7 weights.
template <int R>
void set_shapes() {
  TileShapes shapes;
  shapes.set(0, 4, R, 64);
  shapes.set(4, 6, R, kGroup);
  shapes.set(6, 8, kGroup / 4, 64);
  shapes.load();
}

constexpr int64_t kPlane = kTileRows * kGroup;  // bytes, of 16 rows
constexpr int64_t kWeights = kTileColumns * kGroup;

// Activations of 16 rows after each other, [row tiles, groups, 2, 16, 32]: high and low. Rows that are
// not there are zeros: `planes` below.
struct Job {
  const Rows& rows;
  const GroupWeight& weight;
  const Slices& slices;
  const Quantized& q;
  const int8_t* planes;
  int64_t groups;
};

// One group of one row: 32 words as `quantize_row` leaves them, to the row's place in both planes.
void split(const int16_t* from, int8_t* to) {
  const __m512i words = _mm512_loadu_si512(from);
  const __m512i back = _mm512_broadcast_i32x4(  // the middle two of each four change places
      _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
  const __m512i in_order = _mm512_shuffle_epi8(words, back);
  const __m512i low = _mm512_and_si512(in_order, _mm512_set1_epi16(127));
  _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi16_epi8(_mm512_srai_epi16(in_order, 7)));
  _mm256_storeu_si256((__m256i*)(to + kPlane), _mm512_cvtepi16_epi8(low));
}

const int8_t* planes_of(const Rows& rows, const Quantized& q, int64_t groups) {
  static thread_local std::vector<int8_t> planes;
  const int64_t tiles = (rows.rows + kTileRows - 1) / kTileRows;
  const size_t bytes = size_t(tiles * groups * 2 * kPlane) + 64;
  if (planes.size() < bytes) planes.resize(bytes);
  int8_t* const plane = (int8_t*)((uintptr_t(planes.data()) + 63) & ~uintptr_t(63));
  const int64_t grain = std::max<int64_t>(1, kGrainValues / (groups * kGroup));
  parallel(tiles * kTileRows, grain, [&](int64_t begin, int64_t end) {
    constexpr int64_t kRowBytes = kPlane / kTileRows;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row / kTileRows * groups, place = row % kTileRows;
      for (int64_t g = 0; g < groups; ++g) {
        int8_t* const to = plane + (first + g) * 2 * kPlane + place * kRowBytes;
        if (row < rows.rows) {
          split(q.values + (row * groups + g) * kGroup, to);
        } else {
          std::memset(to, 0, kRowBytes);
          std::memset(to + kPlane, 0, kRowBytes);
        }
      }
    }
  });
  return plane;
}

// One group's sums into tiles 0 (and 1); below the same into tiles 2 (and 3).
inline void multiply_even(const int8_t* planes, const int8_t* weights) {
  _tile_loadd(6, weights, 64);
  _tile_zero(0);
  _tile_zero(1);
  _tile_loadd(4, planes, 32);
  _tile_loadd(5, planes + kPlane, 32);
  _tile_dpbssd(0, 4, 6);
  _tile_dpbssd(1, 5, 6);
}

inline void multiply_odd(const int8_t* planes, const int8_t* weights) {
  _tile_loadd(7, weights, 64);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, planes, 32);
  _tile_loadd(5, planes + kPlane, 32);
  _tile_dpbssd(2, 4, 7);
  _tile_dpbssd(3, 5, 7);
}

inline void store_even(int8_t* sums) {
  _tile_stored(0, sums, 64);
  _tile_stored(1, sums + kSums, 64);
}

inline void store_odd(int8_t* sums) {
  _tile_stored(2, sums + 2 * kSums, 64);
  _tile_stored(3, sums + 3 * kSums, 64);
}

template <int R>
inline void add_group(const int8_t* sums, const uint16_t* scales, int64_t g, Floats (&made)[R]) {
  const Floats scale = from_float16s(scales + g * kTileColumns);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    Integers high, low;
    std::memcpy(&high, sums + r * 64, 64);
    std::memcpy(&low, sums + kSums + r * 64, 64);
    made[r] = made[r] + __builtin_convertvector((high << 7) + low, Floats) * scale;
  }
}

// Some groups of the products of R rows and 16 outputs: [begin, begin + groups) of all.
struct Span {
  int64_t begin, groups;
};

// `made` goes on from what the groups before gave. `sums`: room for four tiles of them.
template <int R>
inline void add_groups(const int8_t* planes, const int8_t* weights, int64_t groups,
                       const uint16_t* by, int8_t* sums, Floats (&made)[R]) {
  const auto even = [&](int64_t g) {
    multiply_even(planes + g * 2 * kPlane, weights + g * kWeights);
  };
  const auto odd = [&](int64_t g) {
    multiply_odd(planes + g * 2 * kPlane, weights + g * kWeights);
  };
  even(0);
  if (groups > 1) odd(1);
  store_even(sums);
  if (groups > 2) even(2);
  int64_t g = 0;
  for (; g + 5 <= groups; g += 2) {
    store_odd(sums);
    odd(g + 3);
    add_group<R>(sums, by, g, made);
    store_even(sums);
    even(g + 4);
    add_group<R>(sums + 2 * kSums, by, g + 1, made);
  }
  for (; g < groups; g += 2) {
    if (g + 1 < groups) store_odd(sums);
    if (g + 3 < groups) odd(g + 3);
    add_group<R>(sums, by, g, made);
    if (g + 2 < groups) store_even(sums);
    if (g + 1 < groups) add_group<R>(sums + 2 * kSums, by, g + 1, made);
  }
}

// Where a block of R rows and 16 outputs is: `count` of the rows are there.
struct Place {
  int64_t row, count, tile;
};

template <int R>
inline void finish(const Job& job, const Place& place, const Floats (&made)[R]) {
  const Target target = target_of(job.slices, place.tile);
  const bool biased = job.weight.bias != nullptr;
  Floats bias = {};
  if (biased) std::memcpy(&bias, job.weight.bias + place.tile * kTileColumns, sizeof bias);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    if (r >= place.count) break;
    Floats value = made[r] * splat(job.q.scales[place.row + r]);
    if (biased) value = value + bias;
    store(value, target, job.rows.element, place.row + r);
  }
}

// `kept`: the block's sums between one span and the next.
template <int R>
void block(const Job& job, const Place& place, const Span& span, int8_t* sums, float* kept) {
  const int64_t first = place.row / kTileRows * job.groups + span.begin;
  const int64_t at = place.tile * job.groups + span.begin;
  Floats made[R];
  if (span.begin == 0) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) made[r] = Floats{};
  } else {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) std::memcpy(&made[r], kept + r * kTileColumns, 64);
  }
  const int8_t* const planes = job.planes + first * 2 * kPlane;
  add_groups<R>(planes, job.weight.packed + at * kWeights, span.groups,
                job.weight.scale + at * kTileColumns, sums, made);
  if (span.begin + span.groups == job.groups) return finish<R>(job, place, made);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) std::memcpy(kept + r * kTileColumns, &made[r], 64);
}

// A thread's memory: what is in use at a time stays in the first cache.
struct Room {
  alignas(64) int8_t sums[4 * kSums];
  alignas(64) float kept[kPanelRows / kTileRows][kPair][kTileRows * kTileColumns];
};

// Asked for once: where a compiler sees the thread's own memory it looks its address up again and
// again, by calls before which all registers are put aside.
[[gnu::noinline]] Room& room_of_thread() {
  static thread_local Room room;
  return room;
}

// Row tiles of R rows, or one that is not full, against tiles of outputs.
template <int R>
void tiles(const Job& job, int64_t row, int64_t row_end, int64_t tile, int64_t tile_end) {
  Room& room = room_of_thread();
  set_shapes<R>();
  const int64_t groups = job.groups;
  for (; tile < tile_end; tile += kPair) {
    const int64_t pair = std::min<int64_t>(kPair, tile_end - tile);
    for (Span span{0, 0}; span.begin < groups; span.begin += kSpan) {
      span.groups = std::min<int64_t>(kSpan, groups - span.begin);
      for (int64_t r = row; r < row_end; r += kTileRows)
        for (int64_t t = 0; t < pair; ++t)
          block<R>(job, {r, std::min<int64_t>(R, row_end - r), tile + t}, span, room.sums,
                   room.kept[(r - row) / kTileRows][t]);
    }
  }
  _tile_release();
}

bool ask_for_tiles() {
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  constexpr unsigned kSaved = 3u << 17;             // tile shapes and data, in XCR0
  if (!__builtin_cpu_supports("avx512bf16")) return false;
  unsigned a = 7, b = 0, c = 0, d = 0;
  asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  constexpr unsigned kNeeded = 1u << 22 | 1u << 24 | 1u << 25;  // bfloat16, tiles, int8
  if ((d & kNeeded) != kNeeded) return false;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kSaved) == kSaved && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

}  // namespace

bool has_tiles() {
  static const bool has = ask_for_tiles();
  return has;
}

void tile_linear(const Rows& rows, const GroupWeight& weight, const Slices& slices,
                 const Quantized& q) {
  const int64_t groups = weight.depth / kGroup;
  const Job job{rows, weight, slices, q, planes_of(rows, q, groups), groups};
  const int64_t fitting = kPanelBytes / (groups * 2 * kPlane) * kTileRows;
  const int64_t chunk = std::clamp<int64_t>(fitting, kTileRows, kPanelRows);
  over_tiles(rows.rows, weight.tiles, weight.depth, chunk,
             [&](int64_t row, int64_t row_end, int64_t tile, int64_t tile_end) {
               const int64_t full = row_end - (row_end - row) % kTileRows;
               if (row < full) tiles<16>(job, row, full, tile, tile_end);
               const int64_t rest = row_end - full;
               if (rest > 8) tiles<16>(job, full, row_end, tile, tile_end);
               if (rest > 4 && rest <= 8) tiles<8>(job, full, row_end, tile, tile_end);
               if (rest > 0 && rest <= 4) tiles<4>(job, full, row_end, tile, tile_end);
             });
}

}  // namespace swarm

#else

namespace swarm {

bool has_tiles() { return false; }

void tile_linear(const Rows&, const GroupWeight&, const Slices&, const Quantized&) {}

}  // namespace swarm

#endif
