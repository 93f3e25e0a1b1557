// `mode` and `fill_value` as arguments of an op: their names, checks, and the values for kernels.
#pragma once

#include <ATen/Dispatch_v2.h>
#include <c10/core/Scalar.h>
#include <c10/util/Exception.h>

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "common/indexing/index_mode.h"
#include "common/torch/calls/checks.h"

namespace torch_ops::indexing {

// In the order of IndexMode. The last is for the library's own use: the mode of source[index]. It
// is an argument only of registered ops.
constexpr std::array<std::string_view, 6> kModeNames = {"raise", "wrap",      "clip",
                                                        "fill",  "unchecked", "from_end"};

inline IndexMode parse_mode(const char* op, std::string_view mode) {
  for (size_t i = 0; i < kModeNames.size(); ++i) {
    if (mode == kModeNames[i]) return static_cast<IndexMode>(i);
  }
  TORCH_CHECK_VALUE(false, op,
                    R"(: mode must be "raise", "wrap", "clip", "fill" or "unchecked", but it is ")",
                    mode, R"(".)");
}

// The nodes of derivatives keep a mode as a number.
inline std::string_view mode_name(int64_t mode) { return kModeNames[mode]; }

// That of a gradient, as a number. An entry that named no row was an error; the gradient need not
// check for it again.
inline int64_t mode_of_gradient(const char* op, std::string_view mode) {
  const IndexMode parsed = parse_mode(op, mode);
  return static_cast<int64_t>(parsed == IndexMode::kFromEnd ? IndexMode::kFill : parsed);
}

// Does a number convert to the dtype? None converts to bare bits or to pairs of float4.
inline bool has_fill(at::ScalarType dtype) {
  return at::isIntegralType(dtype, /*includeBool=*/true) || at::isComplexType(dtype) ||
         (at::isFloatingType(dtype) && dtype != at::ScalarType::Float4_e2m1fn_x2);
}

// As Python shows a number.
inline std::string shown_number(const at::Scalar& number) {
  if (number.isComplex()) {
    const c10::complex<double> value = number.toComplexDouble();
    return c10::str("(", value.real(), std::signbit(value.imag()) ? "" : "+", value.imag(), "j)");
  }
  std::string text = c10::str(number);
  const bool is_whole = text.find_first_not_of("-0123456789") == text.npos;
  return number.isFloatingPoint() && is_whole ? text + ".0" : text;
}

// Does the dtype fit the mode? Does a fill value that the caller gave fit both?
inline void check_fill_value(const char* op, IndexMode mode, const std::optional<at::Scalar>& fill,
                             at::ScalarType dtype) {
  TORCH_CHECK_TYPE(mode != IndexMode::kFill || has_fill(dtype), op, ": there is no value of ",
                   dtype_name(dtype), " to fill with.");
  if (!fill) return;
  const IndexMode given = mode == IndexMode::kFromEnd ? IndexMode::kRaise : mode;
  TORCH_CHECK_VALUE(mode == IndexMode::kFill, op,
                    R"(: fill_value is for mode="fill", but mode is ")",
                    mode_name(static_cast<int64_t>(given)), R"(".)");
  const bool complex = at::isComplexType(dtype);
  TORCH_CHECK_VALUE(complex || !fill->isComplex(), op, ": fill_value must be a real number for ",
                    dtype_name(dtype), ", but it is ", shown_number(*fill), ".");
  if (fill->isSymbolic()) return;  // the call with a number checks it
  if (complex || at::isFloatingType(dtype)) {
    double largest = 0;
    AT_DISPATCH_V2(
        c10::toRealValueType(dtype), "fill_value",
        AT_WRAP([&] { largest = static_cast<double>(std::numeric_limits<scalar_t>::max()); }),
        AT_EXPAND(AT_FLOATING_TYPES), AT_EXPAND(AT_FLOAT8_TYPES), at::kHalf, at::kBFloat16);
    const auto fits = [&](double part) {
      return !std::isfinite(part) || std::abs(part) <= largest;
    };
    const c10::complex<double> value = fill->toComplexDouble();
    TORCH_CHECK_VALUE(fits(value.real()) && fits(value.imag()), op,
                      ": fill_value must be between -", largest, " and ", largest,
                      complex ? " in both parts for " : " for ", dtype_name(dtype), ", but it is ",
                      shown_number(*fill), ".");
    return;
  }
  TORCH_CHECK_VALUE(fill->isIntegral(/*includeBool=*/true), op,
                    ": fill_value must be an integer for ", dtype_name(dtype), ", but it is ",
                    shown_number(*fill), ".");
  AT_DISPATCH_V2(dtype, "fill_value", AT_WRAP([&] {
                   // Beyond int64 there is only the upper half of uint64's values.
                   using limits = std::numeric_limits<scalar_t>;
                   constexpr int64_t kLeast = limits::is_signed ? limits::lowest() : 0;
                   constexpr uint64_t kMost = limits::max();
                   const int64_t value = fill->toLong();
                   const bool fits =
                       value >= kLeast && (value < 0 || static_cast<uint64_t>(value) <= kMost);
                   TORCH_CHECK_VALUE(fits, op, ": fill_value must be between ", kLeast, " and ",
                                     kMost, " for ", dtype_name(dtype), ", but it is ", value, ".");
                 }),
                 AT_EXPAND(AT_INTEGRAL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool);
}

// The value for a row that does not exist. Unless the caller passes one, it is JAX's: NaN, the
// least signed, the greatest unsigned integer, true (jax.numpy.take's documentation).
template <class T>
T fill_element(const std::optional<at::Scalar>& fill) {
  if (fill) return fill->to<T>();
  if constexpr (std::is_integral_v<T>) {
    return std::is_signed_v<T> ? std::numeric_limits<T>::lowest() : std::numeric_limits<T>::max();
  } else {
    return at::Scalar(std::numeric_limits<double>::quiet_NaN()).to<T>();
  }
}

// Zeros unless the mode is kFill.
inline FillPattern make_fill(IndexMode mode, const std::optional<at::Scalar>& fill,
                             at::ScalarType dtype) {
  if (mode != IndexMode::kFill) return {};
  FillPattern pattern;
  AT_DISPATCH_V2(dtype, "fill_value", AT_WRAP([&] {
                   const auto value = fill_element<scalar_t>(fill);
                   pattern = FillPattern(&value, sizeof(value));
                 }),
                 AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES),
                 AT_EXPAND(AT_FLOAT8_TYPES), at::kBool, at::kHalf, at::kBFloat16, at::kComplexHalf);
  return pattern;
}

}  // namespace torch_ops::indexing
