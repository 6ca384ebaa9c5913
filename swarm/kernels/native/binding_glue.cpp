// Shows the glue of decoder layers to torch.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <tuple>

#include "glue.h"

namespace swarm::glue {
namespace {

Element element_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return Element::kFloat32;
    case at::kBFloat16: return Element::kBFloat16;
    case at::kHalf: return Element::kFloat16;
    default: TORCH_CHECK(false, "rows of ", tensor.scalar_type(), " are not served");
  }
}

void check_like(const at::Tensor& tensor, const at::Tensor& other) {
  TORCH_CHECK(tensor.scalar_type() == other.scalar_type(), "all must be of one type");
}

at::Tensor rms_norm_op(const at::Tensor& x, const std::optional<at::Tensor>& weight,
                       double epsilon, int64_t weighing) {
  const at::Tensor input = x.contiguous();
  const int64_t size = x.size(-1);
  Norm norm{nullptr, float(epsilon), Weighing(weighing)};
  if (weight) {
    check_like(*weight, x);
    TORCH_CHECK(weight->is_contiguous() && weight->numel() == size && weighing >= 0 &&
                    weighing <= 2,
                "the weight does not fit the rows");
    norm.weight = weight->const_data_ptr();
  }
  at::Tensor output = at::empty_like(input);
  rms_norm(input.const_data_ptr(), element_of(x), size ? x.numel() / size : 0, size, norm,
           output.data_ptr());
  return output;
}

at::Tensor gated_op(const at::Tensor& gate, const at::Tensor& up, int64_t act) {
  check_like(gate, up);
  TORCH_CHECK(gate.sizes() == up.sizes() && act >= 0 && act <= 1, "gate and up differ in shape");
  const at::Tensor a = gate.contiguous(), b = up.contiguous();
  at::Tensor output = at::empty_like(a);
  gated(a.const_data_ptr(), b.const_data_ptr(), element_of(gate), gate.numel(), Gate(act),
        output.data_ptr());
  return output;
}

// [S, T, heads, D]
at::Tensor turned(const at::Tensor& x, const Turn& turn) {
  const at::Tensor input = x.stride(3) == 1 ? x : x.contiguous();
  at::Tensor output = at::empty({x.size(0), x.size(2), x.size(1), x.size(3)}, x.options());
  rotate({input.const_data_ptr(), x.size(1), input.stride(0), input.stride(1), input.stride(2),
          output.data_ptr()},
         turn, element_of(x));
  return output;
}

std::tuple<at::Tensor, at::Tensor> rotate_op(const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& cos, const at::Tensor& sin) {
  for (const at::Tensor* tensor : {&k, &cos, &sin}) check_like(*tensor, q);
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && cos.dim() == 3 && cos.sizes() == sin.sizes(),
              "heads are [S, H, T, D], cos and sin [S, T, turned]");
  TORCH_CHECK(k.size(0) == q.size(0) && k.size(2) == q.size(2) && k.size(3) == q.size(3) &&
                  cos.size(1) == q.size(2) && cos.size(2) <= q.size(3) && cos.size(2) % 2 == 0 &&
                  (cos.size(0) == q.size(0) || cos.size(0) == 1),
              "heads, cos and sin do not fit each other");
  const at::Tensor c = cos.contiguous(), s = sin.contiguous();
  const Turn turn{c.const_data_ptr(), s.const_data_ptr(), q.size(0), q.size(2), q.size(3),
                  c.size(2), c.size(0) == 1 ? 0 : c.size(1) * c.size(2)};
  return {turned(q, turn), turned(k, turn)};
}

}  // namespace
}  // namespace swarm::glue

TORCH_LIBRARY_FRAGMENT(swarm, library) {
  library.def("rms_norm(Tensor x, Tensor? weight, float epsilon, int weighing) -> Tensor");
  library.def("gated(Tensor gate, Tensor up, int act) -> Tensor");
  library.def("rotate(Tensor q, Tensor k, Tensor cos, Tensor sin) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(swarm, CPU, library) {
  library.impl("rms_norm", &swarm::glue::rms_norm_op);
  library.impl("gated", &swarm::glue::gated_op);
  library.impl("rotate", &swarm::glue::rotate_op);
}
