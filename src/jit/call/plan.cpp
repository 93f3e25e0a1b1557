#include "jit/call/plan.h"

#include <c10/util/Exception.h>

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

}  // namespace torch_ops::jit
