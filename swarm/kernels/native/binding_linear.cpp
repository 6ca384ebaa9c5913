// The linear kernels as torch ops.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <atomic>
#include <vector>

#include "float_linear.h"
#include "linear.h"
#include "tile_linear.h"

namespace swarm {

namespace {

constexpr int64_t kTile = 16;
std::atomic<int64_t> tiles_from{kTileRowsLeast};

// For measuring and tests: the rows from which tiles are used, from now on in this process. Gives
// what they were before, or -1 where there are no tiles.
int64_t set_tiles_from(int64_t rows) {
  TORCH_CHECK(rows > 0, "a product has rows");
  return has_tiles() ? tiles_from.exchange(rows) : -1;
}

Element element_of(const at::Tensor& x) {
  TORCH_CHECK(x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16,
              "activations must be float32 or bfloat16, not ", x.scalar_type());
  return x.scalar_type() == at::kFloat ? Element::kFloat32 : Element::kBfloat16;
}

void check_columns(const at::Tensor& tensor, at::ScalarType type, int64_t tiles) {
  TORCH_CHECK(tensor.scalar_type() == type && tensor.is_contiguous() &&
                  tensor.numel() == tiles * kTile,
              "one ", type, " for each of ", tiles * kTile, " columns is wanted");
}

// Empty outputs, one for each width, and where each begins.
struct Outputs {
  std::vector<at::Tensor> tensors;
  std::vector<Slice> slices;
};

Outputs outputs(const at::Tensor& x, at::IntArrayRef widths, int64_t tiles) {
  Outputs made;
  int64_t tile = 0;
  for (const int64_t width : widths) {
    auto shape = x.sizes().vec();
    shape.back() = width;
    made.tensors.push_back(at::empty(shape, x.options()));
    made.slices.push_back({made.tensors.back().data_ptr(), width, tile});
    tile += (width + kTile - 1) / kTile;
  }
  TORCH_CHECK(tile == tiles, "the widths fill ", tile, " tiles of ", tiles);
  return made;
}

Rows rows_of(const at::Tensor& x) {
  const int64_t depth = x.size(-1);
  return {x.data_ptr(), element_of(x), depth > 0 ? x.numel() / depth : 0, depth};
}

std::vector<at::Tensor> group_linear_op(const at::Tensor& x, const at::Tensor& packed,
                                        const at::Tensor& scale,
                                        const std::optional<at::Tensor>& minimum,
                                        const std::optional<at::Tensor>& bias,
                                        at::IntArrayRef widths) {
  TORCH_CHECK(packed.dim() == 5 && packed.scalar_type() == at::kChar && packed.is_contiguous() &&
                  (packed.size(2) == 4 || packed.size(2) == 8),
              "packed weights are [tiles, depth / 32, 4 or 8, 16, 4]");
  const int64_t tiles = packed.size(0), groups = packed.size(1);
  const at::Tensor input = x.contiguous();
  const Rows rows = rows_of(input);
  TORCH_CHECK(rows.depth <= groups * 32 && rows.depth > groups * 32 - 32, "rows of ", rows.depth,
              " do not fit weights of depth ", groups * 32);
  check_columns(scale, at::kHalf, tiles * groups);
  TORCH_CHECK(!minimum || packed.size(2) == 4, "only weights of 4 bits have minimums");
  if (minimum) check_columns(*minimum, at::kHalf, tiles * groups);
  if (bias) check_columns(*bias, at::kFloat, tiles);
  Outputs made = outputs(input, widths, tiles);
  const GroupWeight weight{packed.const_data_ptr<int8_t>(),
                           static_cast<const uint16_t*>(scale.const_data_ptr()),
                           minimum ? static_cast<const uint16_t*>(minimum->const_data_ptr())
                                   : nullptr,
                           bias ? bias->const_data_ptr<float>() : nullptr,
                           tiles,
                           groups * 32,
                           packed.size(2) == 4 ? 4 : 8};
  group_linear(rows, weight, {made.slices.data(), int64_t(made.slices.size())}, tiles_from);
  return made.tensors;
}

// Whether floats of this type have a fast product here.
bool has_float_linear(at::ScalarType type) {
#if defined(__AVX512F__)
  return type == at::kFloat || (type == at::kBFloat16 && has_tiles());
#else
  return false;
#endif
}

std::vector<at::Tensor> float_linear_op(const at::Tensor& x, const at::Tensor& packed,
                                        const std::optional<at::Tensor>& bias,
                                        at::IntArrayRef widths) {
  const at::Tensor input = x.contiguous();
  const Rows rows = rows_of(input);
  TORCH_CHECK(has_float_linear(packed.scalar_type()), packed.scalar_type(), " has no product here");
  TORCH_CHECK(packed.scalar_type() == input.scalar_type() && packed.is_contiguous(),
              "rows and weights are of one type");
  const bool wide = packed.scalar_type() == at::kFloat;
  TORCH_CHECK(wide ? packed.dim() == 3 && packed.size(2) == kTile
                   : packed.dim() == 5 && packed.size(2) == 16 && packed.size(3) == kTile &&
                         packed.size(4) == 2,
              "packed weights are [tiles, depth, 16], or [tiles, depth / 32, 16, 16, 2]");
  const int64_t tiles = packed.size(0), steps = packed.size(1);
  TORCH_CHECK(wide ? rows.depth == steps : (rows.depth + 31) / 32 == steps, "rows of ", rows.depth,
              " do not fit the weights");
  if (bias) check_columns(*bias, at::kFloat, tiles);
  Outputs made = outputs(input, widths, tiles);
  const FloatWeight weight{packed.const_data_ptr(), bias ? bias->const_data_ptr<float>() : nullptr,
                           tiles, rows.depth};
  const Slices slices{made.slices.data(), int64_t(made.slices.size())};
  wide ? float_linear(rows, weight, slices) : tile_float_linear(rows, weight, slices);
  return made.tensors;
}

}  // namespace

}  // namespace swarm

TORCH_LIBRARY_FRAGMENT(swarm, library) {
  library.def(
      "group_linear(Tensor x, Tensor packed, Tensor scale, Tensor? minimum, Tensor? bias, "
      "int[] widths) -> Tensor[]");
  library.def("float_linear(Tensor x, Tensor packed, Tensor? bias, int[] widths) -> Tensor[]");
  library.def("has_float_linear(ScalarType type) -> bool", &swarm::has_float_linear);
  library.def("set_tiles_from(int rows) -> int", &swarm::set_tiles_from);
}

TORCH_LIBRARY_IMPL(swarm, CPU, library) {
  library.impl("group_linear", &swarm::group_linear_op);
  library.impl("float_linear", &swarm::float_linear_op);
}
