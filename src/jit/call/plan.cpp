#include "jit/call/plan.h"

#include "common/torch/calls/checks.h"

namespace torch_ops::jit {
namespace {

template <class T>
T converted(const c10::Scalar& number) {
  if (number.isFloatingPoint()) return static_cast<T>(number.toDouble());
  if (number.isBoolean()) return static_cast<T>(number.toBool());
  if (number.isUnsigned()) return static_cast<T>(number.toUInt64());
  return static_cast<T>(number.toLong());
}

template <class T>
int64_t bits_of(T value) {
  int64_t word = 0;
  std::memcpy(&word, &value, sizeof(value));
  return word;
}

template <class T>
int64_t bits(const c10::Scalar& number) {
  return bits_of(converted<T>(number));
}

}  // namespace

void Words::put(const c10::Scalar& number, c10::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return put(bits<double>(number));
    case at::kFloat:
    case at::kHalf:
    case at::kBFloat16:
      return put(bits<float>(number));
    case at::kComplexFloat:
      return put(bits_of(static_cast<c10::complex<float>>(number.toComplexDouble())));
    case at::kComplexDouble:
      put(bits_of(number.toComplexDouble().real()));
      return put(bits_of(number.toComplexDouble().imag()));
    case at::kBool:
      return put(int64_t{converted<double>(number) != 0});
    default:  // integers: their low bits
      return put(number.isFloatingPoint() ? static_cast<int64_t>(number.toDouble())
                                          : bits<int64_t>(number));
  }
}

void Words::put_raw(const at::Tensor& tensor) {
  put(tensor.data_ptr());
  put(tensor.numel());
  for (const auto values : {tensor.sizes(), tensor.strides()}) {
    for (const int64_t value : values) put(value);
    if (tensor.dim() == 0) put(int64_t{0});  // the struct's arrays have one element at least
  }
}

void Launcher::operator()(Kernel kernel, int64_t blocks, int64_t blocks_y, int64_t threads,
                          int64_t threads_y, bool early) const {
  LaunchShape shape{{static_cast<uint32_t>(blocks), static_cast<uint32_t>(blocks_y), 1},
                    {static_cast<uint32_t>(threads), static_cast<uint32_t>(threads_y), 1}};
  shape.early = early;
  void* arguments[] = {plan_.data()};
  gpu_code().launch_kernel(kernel, device_, shape, stream_, arguments);
}

void Layout::add_inputs(const Signature& kernel, const Arguments& arguments, const Types& types,
                        c10::SmallVector<const Tensor*, 4> raw,
                        c10::function_ref<void(size_t k, const Tensor& tensor)> walk) {
  for (size_t k = 0; k < kernel.in.size(); ++k) {
    const Tensor* tensor = arguments[k].tensor;
    const bool number = is_number(arguments[k], kernel.in[k]);
    TORCH_CHECK_TYPE(tensor || !kernel.in[k].raw, kernel.name, ": ", kernel.in[k].name,
                     " is a raw parameter and takes a tensor, not a number.");
    computed.push_back(types.in[k]);
    stored.push_back(number ? ScalarType::Undefined : tensor->scalar_type());
    if (number) {
      tail.put(tensor ? tensor->item() : arguments[k].number, types.in[k]);
    } else if (kernel.in[k].raw) {
      raw.push_back(tensor);
    } else {
      walk(k, *tensor);
    }
  }
  for (const Tensor* tensor : raw) {
    TORCH_CHECK_VALUE(tensor->dim() < 100, kernel.name, ": a raw array of ", tensor->dim(),
                      " axes is not supported.");
    const auto rank = static_cast<int8_t>(tensor->dim());
    raw_ranks.push_back(tensor->is_contiguous() ? rank : static_cast<int8_t>(-1 - rank));
    tail.put_raw(*tensor);
  }
}

std::string Layout::key(c10::Device device) const {
  std::string key(1, static_cast<char>(device.is_cuda() ? device.index() + 1 : 0));
  for (const ScalarType type : stored) key.push_back(static_cast<char>(type));
  for (const ScalarType type : computed) key.push_back(static_cast<char>(type));
  for (const int8_t rank : raw_ranks) key.push_back(rank);
  return key;
}

}  // namespace torch_ops::jit
