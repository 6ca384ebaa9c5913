// A tile instruction multiplies 16 rows of 64 bytes with 64 bytes of 16 columns. An activation of 15
// bits is high * 128 + low, which go in as two tiles, and a group's sums come out before they are
// scaled, so that the sums are the integers that they are everywhere else:
//
// * 8-bit weights: bytes times bytes, sums of high and of low as 32-bit integers;
// * 4-bit weights: all three as bfloat16, which holds integers up to 256. A group's sum stays below
//   2^23 at every moment, so float32 holds it whatever the order, and there is one sum to store.
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

// Groups that are done before the next row tile comes: of 4 bits so few that their unpacked weights
// and these activations stay in the first cache.
template <int kBits>
constexpr int64_t kSpan = kBits == 8 ? 32 : 6;
constexpr int32_t kInt4Zero = 8;

// Tiles 0 to 3 are sums, 4 and 5 high and low activations, 6 and 7 weights.
template <int kBits, int R>
void set_shapes() {
  TileShapes shapes;
  constexpr int kBytes = kBits == 8 ? kGroup : 2 * kGroup;
  shapes.set(0, 4, R, 64);
  shapes.set(4, 6, R, kBytes);
  shapes.set(6, 8, kBytes / 4, 64);
  shapes.load();
}

template <int kBits>
constexpr int64_t kPlane = kTileRows * kGroup * (kBits == 8 ? 1 : 2);  // bytes, of 16 rows
template <int kBits>
constexpr int64_t kWeights = kTileColumns * kGroup * (kBits == 8 ? 1 : 2);

// Activations of 16 rows after each other: planes [row tiles, groups, 2, 16, 32] of bytes or
// bfloat16, totals [row tiles, groups, 16]. Rows that are not there are zeros.
struct Panels {
  const int8_t* planes;
  const float* totals;
};

struct Job {
  const Rows& rows;
  const GroupWeight& weight;
  const Slices& slices;
  const Quantized& q;
  Panels panels;
  int64_t groups;
};

inline __m256i bfloat16s(__m256i words) {
  return (__m256i)_mm512_cvtneps_pbh(_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(words)));
}

// One group of one row: 32 words as `quantize_row` leaves them, to the row's place in both planes.
template <int kBits>
void split(const int16_t* from, int8_t* to) {
  const __m512i words = _mm512_loadu_si512(from);
  if constexpr (kBits == 8) {
    const __m512i back = _mm512_broadcast_i32x4(  // the middle two of each four change places
        _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    const __m512i in_order = _mm512_shuffle_epi8(words, back);
    const __m512i low = _mm512_and_si512(in_order, _mm512_set1_epi16(127));
    _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi16_epi8(_mm512_srai_epi16(in_order, 7)));
    _mm256_storeu_si256((__m256i*)(to + kPlane<8>), _mm512_cvtepi16_epi8(low));
  } else {
    const __m512i low = _mm512_and_si512(words, _mm512_set1_epi16(127));
    const __m512i high = _mm512_sub_epi16(words, low);
    for (int half = 0; half < 2; ++half) {
      const __m256i h = half ? _mm512_extracti64x4_epi64(high, 1) : _mm512_castsi512_si256(high);
      const __m256i l = half ? _mm512_extracti64x4_epi64(low, 1) : _mm512_castsi512_si256(low);
      _mm256_storeu_si256((__m256i*)(to + half * 32), bfloat16s(h));
      _mm256_storeu_si256((__m256i*)(to + kPlane<4> + half * 32), bfloat16s(l));
    }
  }
}

template <int kBits>
Panels panels_of(const Rows& rows, const Quantized& q, int64_t groups) {
  static thread_local std::vector<int8_t> planes;
  static thread_local std::vector<float> totals;
  const int64_t tiles = (rows.rows + kTileRows - 1) / kTileRows;
  const size_t bytes = size_t(tiles * groups * 2 * kPlane<kBits>) + 64;
  if (planes.size() < bytes) planes.resize(bytes);
  if (totals.size() < size_t(tiles * groups * kTileRows))
    totals.resize(size_t(tiles * groups * kTileRows));
  int8_t* const plane = (int8_t*)((uintptr_t(planes.data()) + 63) & ~uintptr_t(63));
  float* const total = totals.data();
  const int64_t grain = std::max<int64_t>(1, kGrainValues / (groups * kGroup));
  parallel(tiles * kTileRows, grain, [&](int64_t begin, int64_t end) {
    constexpr int64_t kRowBytes = kPlane<kBits> / kTileRows;
    for (int64_t row = begin; row < end; ++row) {
      const int64_t first = row / kTileRows * groups, place = row % kTileRows;
      for (int64_t g = 0; g < groups; ++g) {
        int8_t* const to = plane + (first + g) * 2 * kPlane<kBits> + place * kRowBytes;
        float& sum = total[(first + g) * kTileRows + place];
        if (row < rows.rows) {
          split<kBits>(q.values + (row * groups + g) * kGroup, to);
          sum = float(q.totals[row * groups + g]);
        } else {
          std::memset(to, 0, kRowBytes);
          std::memset(to + kPlane<kBits>, 0, kRowBytes);
          sum = 0;
        }
      }
    }
  });
  return {plane, total};
}

// What each 4 bits mean, as bfloat16; twice, so that a fifth bit of an index does not matter.
__m512i meanings(int zero) {
  alignas(64) uint16_t values[32];
  for (int i = 0; i < 32; ++i) values[i] = to_bfloat16(float((i & 15) - zero));
  return _mm512_load_si512(values);
}

// Weights of one tile of outputs, 4 bits to bfloat16, in the order of `split`'s words.
inline void unpack(const int8_t* packed, int64_t groups, __m512i table, int8_t* to) {
  for (int64_t step = 0; step < groups * 4; ++step, packed += 64) {
    const __m512i both = _mm512_loadu_si512(packed);
    int8_t* const at = to + step / 4 * kWeights<4> + step % 4 * 128;
    _mm512_storeu_si512(at, _mm512_permutexvar_epi16(both, table));
    _mm512_storeu_si512(at + 64, _mm512_permutexvar_epi16(_mm512_srli_epi16(both, 8), table));
    _mm512_storeu_si512(at + 512, _mm512_permutexvar_epi16(_mm512_srli_epi16(both, 4), table));
    _mm512_storeu_si512(at + 576, _mm512_permutexvar_epi16(_mm512_srli_epi16(both, 12), table));
  }
}

// One group's sums into tiles 0 (and 1); below the same into tiles 2 (and 3).
template <int kBits>
inline void multiply_even(const int8_t* planes, const int8_t* weights) {
  _tile_loadd(6, weights, 64);
  _tile_zero(0);
  if constexpr (kBits == 8) {
    _tile_zero(1);
    _tile_loadd(4, planes, 32);
    _tile_loadd(5, planes + kPlane<8>, 32);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 5, 6);
  } else {
    _tile_loadd(4, planes, 64);
    _tile_loadd(5, planes + kPlane<4>, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(0, 5, 6);
  }
}

template <int kBits>
inline void multiply_odd(const int8_t* planes, const int8_t* weights) {
  _tile_loadd(7, weights, 64);
  _tile_zero(2);
  if constexpr (kBits == 8) {
    _tile_zero(3);
    _tile_loadd(4, planes, 32);
    _tile_loadd(5, planes + kPlane<8>, 32);
    _tile_dpbssd(2, 4, 7);
    _tile_dpbssd(3, 5, 7);
  } else {
    _tile_loadd(4, planes, 64);
    _tile_loadd(5, planes + kPlane<4>, 64);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(2, 5, 7);
  }
}

template <int kBits>
inline void store_even(int8_t* sums) {
  _tile_stored(0, sums, 64);
  if constexpr (kBits == 8) _tile_stored(1, sums + kSums, 64);
}

template <int kBits>
inline void store_odd(int8_t* sums) {
  _tile_stored(2, sums + 2 * kSums, 64);
  if constexpr (kBits == 8) _tile_stored(3, sums + 3 * kSums, 64);
}

// What scales the sums of one row tile and one tile of outputs, by group.
struct Scales {
  const uint16_t* scale;
  const uint16_t* minimum;
  const float* totals;
};

template <int kBits, bool kMinimum, int R>
inline void add_group(const int8_t* sums, const Scales& by, int64_t g, Floats (&made)[R]) {
  const Floats scale = from_float16s(by.scale + g * kTileColumns);
  Floats minimum = {};
  if constexpr (kMinimum) minimum = from_float16s(by.minimum + g * kTileColumns);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    Floats sum;
    if constexpr (kBits == 8) {
      Integers high, low;
      std::memcpy(&high, sums + r * 64, 64);
      std::memcpy(&low, sums + kSums + r * 64, 64);
      sum = __builtin_convertvector((high << 7) + low, Floats);
    } else {
      std::memcpy(&sum, sums + r * 64, 64);
    }
    made[r] = made[r] + sum * scale;
    if constexpr (kMinimum) made[r] = made[r] + splat(by.totals[g * kTileRows + r]) * minimum;
  }
}

// Some groups of the products of R rows and 16 outputs: [begin, begin + groups) of all.
struct Span {
  int64_t begin, groups;
};

// `made` goes on from what the groups before gave. `sums`: room for four tiles of them.
template <int kBits, bool kMinimum, int R>
inline void add_groups(const int8_t* planes, const int8_t* weights, int64_t groups,
                       const Scales& by, int8_t* sums, Floats (&made)[R]) {
  const auto even = [&](int64_t g) {
    multiply_even<kBits>(planes + g * 2 * kPlane<kBits>, weights + g * kWeights<kBits>);
  };
  const auto odd = [&](int64_t g) {
    multiply_odd<kBits>(planes + g * 2 * kPlane<kBits>, weights + g * kWeights<kBits>);
  };
  even(0);
  if (groups > 1) odd(1);
  store_even<kBits>(sums);
  if (groups > 2) even(2);
  int64_t g = 0;
  for (; g + 5 <= groups; g += 2) {
    store_odd<kBits>(sums);
    odd(g + 3);
    add_group<kBits, kMinimum, R>(sums, by, g, made);
    store_even<kBits>(sums);
    even(g + 4);
    add_group<kBits, kMinimum, R>(sums + 2 * kSums, by, g + 1, made);
  }
  for (; g < groups; g += 2) {
    if (g + 1 < groups) store_odd<kBits>(sums);
    if (g + 3 < groups) odd(g + 3);
    add_group<kBits, kMinimum, R>(sums, by, g, made);
    if (g + 2 < groups) store_even<kBits>(sums);
    if (g + 1 < groups) add_group<kBits, kMinimum, R>(sums + 2 * kSums, by, g + 1, made);
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
template <int kBits, bool kMinimum, int R>
void block(const Job& job, const Place& place, const Span& span, const int8_t* weights,
           int8_t* sums, float* kept) {
  const int64_t first = place.row / kTileRows * job.groups + span.begin;
  const int64_t at = (place.tile * job.groups + span.begin) * kTileColumns;
  const Scales by{job.weight.scale + at, kMinimum ? job.weight.minimum + at : nullptr,
                  job.panels.totals + first * kTileRows};
  Floats made[R];
  if (span.begin == 0) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) made[r] = Floats{};
  } else {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) std::memcpy(&made[r], kept + r * kTileColumns, 64);
  }
  const int8_t* const planes = job.panels.planes + first * 2 * kPlane<kBits>;
  add_groups<kBits, kMinimum, R>(planes, weights, span.groups, by, sums, made);
  if (span.begin + span.groups == job.groups) return finish<R>(job, place, made);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) std::memcpy(kept + r * kTileColumns, &made[r], 64);
}

// A thread's memory: what is in use at a time stays in the first cache.
struct Room {
  alignas(64) int8_t sums[4 * kSums];
  alignas(64) int8_t weights[kPair][kSpan<4> * kWeights<4>];
  alignas(64) float kept[kPanelRows / kTileRows][kPair][kTileRows * kTileColumns];
};

// Row tiles of R rows, or one that is not full, against tiles of outputs.
template <int kBits, bool kMinimum, int R>
void tiles(const Job& job, int64_t row, int64_t row_end, int64_t tile, int64_t tile_end) {
  static thread_local Room room;
  set_shapes<kBits, R>();
  const __m512i table = meanings(kMinimum ? 0 : kInt4Zero);
  const int64_t groups = job.groups;
  for (; tile < tile_end; tile += kPair) {
    const int64_t pair = std::min<int64_t>(kPair, tile_end - tile);
    for (Span span{0, 0}; span.begin < groups; span.begin += kSpan<kBits>) {
      span.groups = std::min<int64_t>(kSpan<kBits>, groups - span.begin);
      const int8_t* weights[kPair];
      for (int64_t t = 0; t < pair; ++t) {
        const int64_t at = (tile + t) * groups + span.begin;
        weights[t] = job.weight.packed + at * kWeights<8>;
        if constexpr (kBits == 4) {
          unpack(job.weight.packed + at * (kWeights<8> / 2), span.groups, table, room.weights[t]);
          weights[t] = room.weights[t];
        }
      }
      for (int64_t r = row; r < row_end; r += kTileRows)
        for (int64_t t = 0; t < pair; ++t)
          block<kBits, kMinimum, R>(job, {r, std::min<int64_t>(R, row_end - r), tile + t}, span,
                                    weights[t], room.sums, room.kept[(r - row) / kTileRows][t]);
    }
  }
  _tile_release();
}

template <int kBits, bool kMinimum>
void run(const Rows& rows, const GroupWeight& weight, const Slices& slices, const Quantized& q) {
  const int64_t groups = weight.depth / kGroup;
  const Job job{rows, weight, slices, q, panels_of<kBits>(rows, q, groups), groups};
  const int64_t fitting = kPanelBytes / (groups * 2 * kPlane<kBits>) * kTileRows;
  const int64_t chunk = std::clamp<int64_t>(fitting, kTileRows, kPanelRows);
  over_tiles(rows.rows, weight.tiles, weight.depth, chunk,
             [&](int64_t row, int64_t row_end, int64_t tile, int64_t tile_end) {
               const int64_t full = row_end - (row_end - row) % kTileRows;
               if (row < full) tiles<kBits, kMinimum, 16>(job, row, full, tile, tile_end);
               const int64_t rest = row_end - full;
               if (rest > 8) tiles<kBits, kMinimum, 16>(job, full, row_end, tile, tile_end);
               if (rest > 4 && rest <= 8)
                 tiles<kBits, kMinimum, 8>(job, full, row_end, tile, tile_end);
               if (rest > 0 && rest <= 4)
                 tiles<kBits, kMinimum, 4>(job, full, row_end, tile, tile_end);
             });
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
  if (weight.bits == 8) {
    run<8, false>(rows, weight, slices, q);
  } else if (weight.minimum != nullptr) {
    run<4, true>(rows, weight, slices, q);
  } else {
    run<4, false>(rows, weight, slices, q);
  }
}

}  // namespace swarm

#else

namespace swarm {

bool has_tiles() { return false; }

void tile_linear(const Rows&, const GroupWeight&, const Slices&, const Quantized&) {}

}  // namespace swarm

#endif
