// Shows paged attention to torch. Everything that a wrong caller could get wrong is checked here.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "attention.h"

namespace swarm::paged {
namespace {

Element element_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return Element::kFloat32;
    case at::kBFloat16: return Element::kBFloat16;
    case at::kHalf: return Element::kFloat16;
    case at::kChar: return Element::kInt8;
    default: TORCH_CHECK(false, "paged attention takes no ", tensor.scalar_type());
  }
}

Pool pool_of(const at::Tensor& keys, const at::Tensor& values,
             const std::optional<at::Tensor>& scales) {
  TORCH_CHECK(keys.dim() == 4 && values.dim() == 4, "a pool has four dimensions");
  TORCH_CHECK(keys.permute({0, 2, 3, 1}).is_contiguous() &&
                  values.permute({0, 2, 1, 3}).is_contiguous(),
              "a pool must be laid out by new_pool");
  TORCH_CHECK(keys.sizes().slice(0, 3) == values.sizes().slice(0, 3) &&
                  keys.scalar_type() == values.scalar_type() && keys.size(1) % 16 == 0,
              "keys and values of a pool do not fit each other");
  Pool pool{keys.data_ptr(),  values.data_ptr(), nullptr,        element_of(keys), keys.size(0),
            keys.size(2), keys.size(3),      values.size(3), keys.size(1)};
  TORCH_CHECK((pool.element == Element::kInt8) == scales.has_value(),
              "scales belong to int8 pools");
  if (scales) {
    TORCH_CHECK(scales->permute({0, 1, 3, 2}).is_contiguous() &&
                    scales->scalar_type() == at::kFloat && scales->size(1) == pool.blocks &&
                    scales->size(2) == pool.block_tokens && scales->size(3) == pool.kv_heads,
                "the scales do not fit the pool");
    pool.scales = scales->data_ptr<float>();
  }
  return pool;
}

Rows rows_of(const at::Tensor& tensor, int64_t size) {
  TORCH_CHECK(tensor.dim() == 3 && tensor.size(2) == size, "rows are [R, heads, ", size, "]");
  TORCH_CHECK(size == 1 || tensor.stride(2) == 1, "the elements of a head must be dense");
  const Rows rows{tensor.data_ptr(), element_of(tensor), tensor.size(0),
                  tensor.size(1),    tensor.stride(0),   tensor.stride(1)};
  TORCH_CHECK(rows.element != Element::kInt8, "rows are floats");
  return rows;
}

// The same rows with each head's elements side by side.
at::Tensor dense(const at::Tensor& tensor) {
  return tensor.stride(-1) == 1 ? tensor : tensor.contiguous();
}

template <class T>
const T* vector_of(const at::Tensor& tensor, int64_t count) {
  TORCH_CHECK(tensor.is_contiguous() && tensor.numel() == count, "a list of rows has not ", count);
  return tensor.data_ptr<T>();
}

void write_rows_op(const at::Tensor& key, const at::Tensor& value, const at::Tensor& keys,
                   const at::Tensor& values, const std::optional<at::Tensor>& scales,
                   const at::Tensor& slots) {
  const Pool pool = pool_of(keys, values, scales);
  const at::Tensor held_key = dense(key), held_value = dense(value);
  const Rows k = rows_of(held_key, pool.key_size), v = rows_of(held_value, pool.value_size);
  TORCH_CHECK(k.heads == pool.kv_heads && v.heads == pool.kv_heads && k.count == v.count,
              "new keys and values do not fit the pool");
  const int64_t* to = vector_of<int64_t>(slots, k.count);
  for (int64_t i = 0; i < k.count; ++i)
    TORCH_CHECK(to[i] >= 0 && to[i] < pool.blocks * pool.block_tokens, "a slot outside the pool");
  write_rows(k, v, to, pool);
}

// Every block that a row will look at must be one of the pool.
void check_places(const Places& places, const Rows& q, const Pool& pool, int64_t lines,
                  int64_t window) {
  for (int64_t row = 0; row < q.count; ++row) {
    const int64_t owner = places.owner[row], context = places.context[row];
    TORCH_CHECK(owner >= 0 && owner < lines, "a row without a sequence");
    TORCH_CHECK(context > 0 && context <= places.table_width * pool.block_tokens,
                "a row's context does not fit its table");
    const int32_t* line = places.table + owner * places.table_width;
    const int64_t from = window && context > window ? context - window : 0;
    for (int64_t b = from / pool.block_tokens; b * pool.block_tokens < context; ++b)
      TORCH_CHECK(line[b] >= 0 && line[b] < pool.blocks, "a table names no block of the pool");
  }
}

at::Tensor attention_op(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                        const std::optional<at::Tensor>& scales, const at::Tensor& table,
                        const at::Tensor& owner, const at::Tensor& context, double scale,
                        int64_t window, double softcap, const std::optional<at::Tensor>& sinks) {
  const Pool pool = pool_of(keys, values, scales);
  const at::Tensor held_q = dense(q);
  const Rows rows = rows_of(held_q, pool.key_size);
  TORCH_CHECK(rows.heads % pool.kv_heads == 0, "query heads are no multiple of KV heads");
  TORCH_CHECK(table.dim() == 2 && table.is_contiguous(), "a table is [N, blocks]");
  const Places places{table.data_ptr<int32_t>(), table.size(1),
                      vector_of<int32_t>(owner, rows.count),
                      vector_of<int32_t>(context, rows.count)};
  check_places(places, rows, pool, table.size(0), window);
  const at::Tensor held_sinks = sinks ? sinks->to(at::kFloat).contiguous() : at::Tensor();
  const Rule rule{float(scale), window, float(softcap),
                  sinks ? vector_of<float>(held_sinks, rows.heads) : nullptr};
  at::Tensor output = at::empty({rows.count, rows.heads, pool.value_size}, q.options());
  attention(rows, pool, places, rule, output.data_ptr());
  return output;
}

at::Tensor attend_op(const at::Tensor& q, const at::Tensor& key, const at::Tensor& value,
                     const at::Tensor& keys, const at::Tensor& values,
                     const std::optional<at::Tensor>& scales, const at::Tensor& table,
                     const at::Tensor& owner, const at::Tensor& context, const at::Tensor& slots,
                     double scale, int64_t window, double softcap,
                     const std::optional<at::Tensor>& sinks) {
  write_rows_op(key, value, keys, values, scales, slots);
  return attention_op(q, keys, values, scales, table, owner, context, scale, window, softcap,
                      sinks);
}

}  // namespace
}  // namespace swarm::paged

TORCH_LIBRARY_FRAGMENT(swarm, library) {
  library.def(
      "write_rows(Tensor key, Tensor value, Tensor(a!) keys, Tensor(b!) values, "
      "Tensor(c!)? scales, Tensor slots) -> ()");
  library.def(
      "paged_attention(Tensor q, Tensor keys, Tensor values, Tensor? scales, Tensor table, "
      "Tensor owner, Tensor context, float scale, int window, float softcap, Tensor? sinks) "
      "-> Tensor");
  library.def(
      "attend(Tensor q, Tensor key, Tensor value, Tensor(a!) keys, Tensor(b!) values, "
      "Tensor(c!)? scales, Tensor table, Tensor owner, Tensor context, Tensor slots, float scale, "
      "int window, float softcap, Tensor? sinks) -> Tensor");
}

TORCH_LIBRARY_IMPL(swarm, CPU, library) {
  library.impl("write_rows", &swarm::paged::write_rows_op);
  library.impl("paged_attention", &swarm::paged::attention_op);
  library.impl("attend", &swarm::paged::attend_op);
}
