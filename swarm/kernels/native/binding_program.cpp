// Records the operators that one run of a model calls, and calls them again without the model.
//
// While a program records, every call that reaches torch's dispatcher from this thread passes
// `on_call` first. Tensors are told apart by identity: those given to `begin` are the inputs, those
// that recorded calls gave are results, and all others (weights, KV blocks, tables of a model) are
// held as they are. A tensor that shares memory with an input or a result and yet came about unseen
// makes the program unusable. A run makes the same calls in the same order, so it gives the same
// bits. What is made of other operators is recorded as those, so that none that looks at values
// stays hidden.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <unordered_map>
#include <utility>
#include <vector>

namespace swarm {
namespace {

constexpr auto kRecording = c10::DispatchKey::TESTING_ONLY_GenericMode;
constexpr int64_t kHeld = -1;

// Where a tensor of a call comes from: a slot, or kHeld for one that never changes. `index` is its
// argument, `element` its place in a list of tensors or -1.
struct Source {
  int64_t slot, index, element;
};

struct Step {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  // held ones in place
  std::vector<Source> sources;
  std::vector<std::vector<int64_t>> results;  // slots of each returned value's tensors
  std::vector<int64_t> last_uses;             // slots that no later step reads
};

class Program;
thread_local Program* recording = nullptr;

// A tensor in place of another, in an argument that may be a list.
void put(c10::IValue& argument, int64_t element, const at::Tensor& tensor) {
  if (element < 0) {
    argument = tensor;
  } else if (argument.isTensorList()) {
    argument.toTensorList().set(element, tensor);
  } else {
    argument.toList().set(element, tensor);
  }
}

// Calls visit(tensor, element) for every tensor in a value.
template <class Visit>
void each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    visit(value.toTensor(), int64_t(-1));
  } else if (value.isList()) {
    const auto list = value.toListRef();
    for (size_t i = 0; i < list.size(); ++i)
      if (list[i].isTensor()) visit(list[i].toTensor(), int64_t(i));
  }
}

// A list of its own, so that a later run may change it.
c10::IValue own_list(const c10::IValue& value) {
  if (value.isTensorList()) return value.toTensorList().copy();
  return value.isList() ? c10::IValue(value.toList().copy()) : value;
}

c10::DispatchKeySet below(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRecording);
}

bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

class Program : public torch::CustomClassHolder {
 public:
  void begin(const std::vector<at::Tensor>& inputs) {
    TORCH_CHECK(recording == nullptr && steps_.empty(), "a program records once, one at a time");
    for (const at::Tensor& input : inputs) slot_of_result(input);
    input_count_ = inputs.size();
    recording = this;
    c10::impl::tls_set_dispatch_key_included(kRecording, true);
  }

  // What keeps the program from being run, as one sentence, or nothing.
  std::string end(const std::vector<at::Tensor>& outputs) {
    c10::impl::tls_set_dispatch_key_included(kRecording, false);
    recording = nullptr;
    for (const at::Tensor& output : outputs) {
      const auto found = slots_.find(output.unsafeGetTensorImpl());
      if (found == slots_.end()) problem_ = "an output comes from no recorded call";
      outputs_.push_back(found == slots_.end() ? 0 : found->second);
    }
    mark_last_uses();
    forget();
    return problem_;
  }

  // Nothing of a recording that failed is kept.
  void drop() {
    c10::impl::tls_set_dispatch_key_included(kRecording, false);
    recording = nullptr;
    problem_ = "its recording failed";
    forget();
  }

  void called(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    if (is_composite(op)) return op.redispatchBoxed(below(keys), stack);
    c10::impl::ExcludeDispatchKeyGuard unseen(kRecording);
    const auto& schema = op.schema();
    const size_t count = schema.arguments().size(), returns = schema.returns().size();
    Step step{op, {}, {}, {}, {}};
    const size_t first = stack->size() - count;
    bool has_tensor = false;
    for (size_t i = 0; i < count; ++i) {
      const c10::IValue& value = (*stack)[first + i];
      each_tensor(value, [&](const at::Tensor& tensor, int64_t element) {
        if (!tensor.defined()) return;
        has_tensor = true;
        const auto found = slots_.find(tensor.unsafeGetTensorImpl());
        if (found != slots_.end())
          step.sources.push_back({found->second, int64_t(i), element});
        else
          take_outside(tensor);
      });
      step.arguments.push_back(own_list(value));
    }
    check_writes(schema, step.arguments);
    check_values(op, step.arguments);
    op.callBoxed(stack);
    for (size_t i = 0; i < returns; ++i) {
      const c10::IValue& value = (*stack)[stack->size() - returns + i];
      if (has_tensor)
        take_result(step, value);
      else
        each_tensor(value, [&](const at::Tensor& tensor, int64_t) { keep(tensor, Origin::kMade); });
    }
    if (!has_tensor) return;
    for (const Source& source : step.sources)  // held by their slot alone
      put(step.arguments[source.index], source.element, at::Tensor());
    steps_.push_back(std::move(step));
  }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) {
    TORCH_CHECK(problem_.empty() && inputs.size() == input_count_, "this program cannot be run so");
    std::vector<at::Tensor> slots(slot_count_);
    std::copy(inputs.begin(), inputs.end(), slots.begin());
    torch::jit::Stack stack;
    for (const Step& step : steps_) {
      stack.assign(step.arguments.begin(), step.arguments.end());
      own_changed_lists(step, stack);
      for (const Source& source : step.sources)
        put(stack[source.index], source.element, slots[source.slot]);
      step.op.callBoxed(&stack);
      for (size_t i = 0; i < step.results.size(); ++i) {
        size_t n = 0;
        each_tensor(stack[i], [&](const at::Tensor& tensor, int64_t) {
          slots[step.results[i].at(n++)] = tensor;
        });
      }
      for (const int64_t slot : step.last_uses) slots[slot] = at::Tensor();
    }
    std::vector<at::Tensor> outputs;
    for (const int64_t slot : outputs_) outputs.push_back(slots[slot]);
    return outputs;
  }

  int64_t size() const { return int64_t(steps_.size()); }

 private:
  enum class Origin { kUnknown, kOutside, kMade, kRun };

  void forget() {
    slots_.clear();
    origins_.clear();
    alive_.clear();
    memories_.clear();
  }

  Origin origin_of(const at::Tensor& tensor) const {
    if (!tensor.defined() || !tensor.has_storage()) return Origin::kUnknown;
    const auto found = origins_.find(tensor.storage().unsafeGetStorageImpl());
    return found == origins_.end() ? Origin::kUnknown : found->second;
  }

  // Addresses stay taken while they are known here; the tensors themselves may go.
  void keep(const at::Tensor& tensor, Origin origin) {
    if (!tensor.defined()) return;
    alive_.emplace_back(tensor.getIntrusivePtr());
    if (!tensor.has_storage() || origin_of(tensor) != Origin::kUnknown) return;
    memories_.emplace_back(tensor.storage().getWeakStorageImpl());
    origins_[tensor.storage().unsafeGetStorageImpl()] = origin;
  }

  int64_t slot_of_result(const at::Tensor& tensor) {
    slots_[tensor.unsafeGetTensorImpl()] = slot_count_;
    keep(tensor, Origin::kRun);
    return slot_count_++;
  }

  // Tensors made of numbers, by a call or by the model's own Python afterwards, are the same in
  // every run, so they are made once; unless a run would change them.
  void check_writes(const c10::FunctionSchema& schema, const std::vector<c10::IValue>& arguments) {
    if (schema.name() == "aten::detach_") return;  // writes nothing
    for (size_t i = 0; i < arguments.size(); ++i) {
      const auto* alias = schema.arguments()[i].alias_info();
      if (alias == nullptr || !alias->isWrite()) continue;
      each_tensor(arguments[i], [&](const at::Tensor& tensor, int64_t) {
        if (origin_of(tensor) == Origin::kMade)
          problem_ = schema.name() + " writes into memory that is the model's own";
      });
    }
  }

  void take_outside(const at::Tensor& tensor) {
    if (origin_of(tensor) == Origin::kRun)
      problem_ = "a tensor came about by no recorded call";
    else
      keep(tensor, Origin::kOutside);
  }

  // What a call gives must have one shape for all values of its inputs.
  void check_values(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments) {
    const std::string& name = op.schema().name();
    bool looks = op.hasTag(at::Tag::dynamic_output_shape) ||
                 op.hasTag(at::Tag::data_dependent_output);
    if (name.starts_with("aten::index") || name.starts_with("aten::_index")) {
      looks = false;
      for (const c10::IValue& value : arguments)
        each_tensor(value, [&](const at::Tensor& tensor, int64_t element) {
          const auto type = tensor.defined() ? tensor.scalar_type() : at::kFloat;
          looks |= element >= 0 && (type == at::kBool || type == at::kByte);
        });
    }
    if (looks) problem_ = name + " looks at values";
  }

  void take_result(Step& step, const c10::IValue& value) {
    std::vector<int64_t> slots;
    each_tensor(value, [&](const at::Tensor& tensor, int64_t) {
      slots.push_back(tensor.defined() ? slot_of_result(tensor) : slot_count_++);
    });
    const bool is_known = value.isTensor() || value.isTensorList() || value.isNone();
    if (!is_known) problem_ = step.op.schema().name() + " hands a value back to the model";
    step.results.push_back(std::move(slots));
  }

  static void own_changed_lists(const Step& step, torch::jit::Stack& stack) {
    for (const Source& source : step.sources)
      if (source.element >= 0) stack[source.index] = own_list(stack[source.index]);
  }

  void mark_last_uses() {
    std::vector<bool> is_needed(slot_count_, false);
    for (const int64_t slot : outputs_) is_needed[slot] = true;
    for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
      const auto use = [&](int64_t slot) {
        if (!is_needed[slot]) step->last_uses.push_back(slot);
        is_needed[slot] = true;
      };
      for (const auto& slots : step->results)
        for (const int64_t slot : slots) use(slot);
      for (const Source& source : step->sources) use(source.slot);
    }
  }

  std::vector<Step> steps_;
  std::unordered_map<const c10::TensorImpl*, int64_t> slots_;
  std::unordered_map<const c10::StorageImpl*, Origin> origins_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> alive_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> memories_;
  std::vector<int64_t> outputs_;
  int64_t slot_count_ = 0;
  size_t input_count_ = 0;
  std::string problem_;
};

void on_call(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (recording != nullptr) return recording->called(op, keys, stack);
  op.redispatchBoxed(below(keys), stack);
}

}  // namespace
}  // namespace swarm

TORCH_LIBRARY_FRAGMENT(swarm, library) {
  library.class_<swarm::Program>("Program")
      .def(torch::init<>())
      .def("begin", &swarm::Program::begin)
      .def("end", &swarm::Program::end)
      .def("drop", &swarm::Program::drop)
      .def("run", &swarm::Program::run)
      .def("size", &swarm::Program::size);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&swarm::on_call>());
}
