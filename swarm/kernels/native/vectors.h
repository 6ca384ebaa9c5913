// A tile's sixteen columns as vectors, with the few operations that depend on the instruction set.
// The compiler's own vectors serve for all else, so that one source means the same everywhere; with
// contraction off, each float operation rounds as it is written.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace swarm {

constexpr int kTileColumns = 16;
constexpr int kDepth = 4;       // neighbouring inputs of one column, in one 32-bit lane
constexpr int kTileStep = 64;   // lanes of a tile, in bytes
constexpr int kGroup = 32;      // inputs that share a scale

#if defined(__AVX512BW__) && defined(__AVX512F__)
constexpr int kWidth = 64;      // bytes of a vector register
#elif defined(__AVX2__)
constexpr int kWidth = 32;
#else
constexpr int kWidth = 16;
#endif
constexpr int kParts = kTileStep / kWidth;  // registers of one tile

typedef float Floats __attribute__((vector_size(kWidth)));
typedef int32_t Integers __attribute__((vector_size(kWidth)));
typedef int16_t Words __attribute__((vector_size(kWidth)));
typedef uint16_t Bits __attribute__((vector_size(kWidth)));
typedef uint8_t Bytes __attribute__((vector_size(kWidth)));

// sums + the products of neighbouring words, two by two.
inline Integers add_products(Integers sums, Words a, Words b) {
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
  return (Integers)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__) && defined(__AVX512F__)
  return sums + (Integers)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVXVNNI__) && defined(__AVX2__)
  return (Integers)_mm256_dpwssd_avx_epi32((__m256i)sums, (__m256i)a, (__m256i)b);
#elif defined(__AVX2__)
  return sums + (Integers)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return sums + (Integers)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  for (int i = 0; i < kWidth / 4; ++i)
    sums[i] += int32_t(a[2 * i]) * b[2 * i] + int32_t(a[2 * i + 1]) * b[2 * i + 1];
  return sums;
#endif
}

// sums + the products of four neighbouring bytes: `a` counts from 0 and is below 128, `b` is signed.
inline Integers add_bytes(Integers sums, Bytes a, Integers b) {
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
  return (Integers)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#elif defined(__AVX512BW__) && defined(__AVX512F__)
  const __m512i pairs = _mm512_maddubs_epi16((__m512i)a, (__m512i)b);
  return sums + (Integers)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif defined(__AVXVNNI__) && defined(__AVX2__)
  return (Integers)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)a, (__m256i)b);
#elif defined(__AVX2__)
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)a, (__m256i)b);
  return sums + (Integers)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(__SSSE3__)
  const __m128i pairs = _mm_maddubs_epi16((__m128i)a, (__m128i)b);
  return sums + (Integers)_mm_madd_epi16(pairs, _mm_set1_epi16(1));
#else
  int8_t other[kWidth];
  std::memcpy(other, &b, kWidth);
  for (int i = 0; i < kWidth; ++i) sums[i / 4] += int32_t(a[i]) * other[i];
  return sums;
#endif
}

// a * b + c with one rounding, on every processor.
inline Floats fused(Floats a, Floats b, Floats c) {
#if defined(__AVX512BW__) && defined(__AVX512F__)
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  for (int i = 0; i < kWidth / 4; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#endif
}

// Two neighbouring words, in every lane.
inline Words pair(const int16_t* words) {
  int32_t both;
  std::memcpy(&both, words, 4);
  return (Words)(Integers{} + both);
}

// Four neighbouring bytes, in every lane.
inline Integers four(const int8_t* bytes) {
  int32_t all;
  std::memcpy(&all, bytes, 4);
  return Integers{} + all;
}

inline Bits load(const int8_t* at) {
  Bits bits;
  std::memcpy(&bits, at, kWidth);
  return bits;
}

// Of floats, at any place.
inline Floats load_floats(const void* at) {
  Floats floats;
  std::memcpy(&floats, at, kWidth);
  return floats;
}

// Minus zero, since plus zero would change -0, and compilers then really add.
inline Floats splat(float value) { return value - Floats{}; }

inline float from_float16(uint16_t bits) {
  const uint32_t magnitude = bits & 0x7fffu;
  uint32_t wide = magnitude << 13;
  float value;
  if (magnitude >= 0x7c00u) {
    wide += 0x70000000u;  // infinite or NaN
  } else if (magnitude >= 0x0400u) {
    wide += 0x38000000u;
  } else {                // below the normal numbers: counted in steps of 2^-24
    value = float(magnitude) * 0x1p-24f;
    std::memcpy(&wide, &value, 4);
  }
  wide |= uint32_t(bits & 0x8000u) << 16;
  std::memcpy(&value, &wide, 4);
  return value;
}

inline Floats from_float16s(const uint16_t* halves) {
#if defined(__AVX512BW__) && defined(__AVX512F__)
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)halves));
#elif defined(__AVX2__) && defined(__F16C__)
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)halves));
#else
  Floats made;
  for (int i = 0; i < kWidth / 4; ++i) made[i] = from_float16(halves[i]);
  return made;
#endif
}

// bfloat16 as its 16 bits. Rounding to nearest even, any NaN becomes 0x7fc0, as torch does it.

inline float from_bfloat16(uint16_t bits) {
  const uint32_t wide = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

inline Floats from_bfloat16s(const uint16_t* bits) {
#if defined(__AVX512BW__) && defined(__AVX512F__)
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)bits));
  return (Floats)_mm512_slli_epi32(wide, 16);
#else
  Floats made;
  for (int i = 0; i < kWidth / 4; ++i) made[i] = from_bfloat16(bits[i]);
  return made;
#endif
}

inline uint16_t to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint16_t rounded = uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
  return (bits & 0x7fffffffu) > 0x7f800000u ? uint16_t(0x7fc0) : rounded;
}

}  // namespace swarm
