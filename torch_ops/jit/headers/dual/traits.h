// What templates ask about a type: its limits, and whether it is a float. A dual number answers as
// the number in it, else a snippet would take another branch than its derivative. For the standard
// library whose namespace TORCH_OPS_LIBRARY is: std, or CUDA's cuda::std. Stands after its headers.
#ifdef __clang__
#pragma clang diagnostic ignored "-Wunknown-warning-option"
#pragma clang diagnostic ignored "-Winvalid-specialization"
#endif
namespace TORCH_OPS_LIBRARY {

template <class T, int N>
class numeric_limits<torch_ops::Dual<T, N>>
    : public numeric_limits<typename torch_ops::Innermost<T>::type> {};

// Variables of templates are of C++17.
#if __cplusplus >= 201703L
#define TORCH_OPS_VARIABLE(...) __VA_ARGS__
#else
#define TORCH_OPS_VARIABLE(...)
#endif

#define TORCH_OPS_TRAIT(name, answer)                                                           \
  template <class T, int N>                                                                     \
  struct name<torch_ops::Dual<T, N>> : integral_constant<bool, answer> {};                      \
  template <class T, int N>                                                                     \
  struct name<const torch_ops::Dual<T, N>> : integral_constant<bool, answer> {};                \
  TORCH_OPS_VARIABLE(template <class T, int N> constexpr bool                                   \
                         name##_v<torch_ops::Dual<T, N>> = answer;                              \
                     template <class T, int N> constexpr bool                                   \
                         name##_v<const torch_ops::Dual<T, N>> = answer;)
TORCH_OPS_TRAIT(is_floating_point, true)
TORCH_OPS_TRAIT(is_arithmetic, true)
TORCH_OPS_TRAIT(is_fundamental, true)
TORCH_OPS_TRAIT(is_scalar, true)
TORCH_OPS_TRAIT(is_signed, true)
TORCH_OPS_TRAIT(is_class, false)
TORCH_OPS_TRAIT(is_compound, false)
#undef TORCH_OPS_TRAIT

// Beside plain types; of two dual numbers the answer is right by itself. A const dual number is a
// const variable, or a result of an operator, whose plain type would not be const: no answer.
#define TORCH_OPS_SAME(qualifier, plain, answer)                                                \
  template <class T, int N>                                                                     \
  struct is_same<qualifier torch_ops::Dual<T, N>, plain> : integral_constant<bool, answer> {};  \
  template <class T, int N>                                                                     \
  struct is_same<plain, qualifier torch_ops::Dual<T, N>> : integral_constant<bool, answer> {};  \
  TORCH_OPS_VARIABLE(template <class T, int N> constexpr bool                                   \
                         is_same_v<qualifier torch_ops::Dual<T, N>, plain> = answer;            \
                     template <class T, int N> constexpr bool                                   \
                         is_same_v<plain, qualifier torch_ops::Dual<T, N>> = answer;)
#define TORCH_OPS_SAME_AS(number)                                                               \
  TORCH_OPS_SAME(, number, (torch_ops::holds<T, number>))                                       \
  TORCH_OPS_SAME(const, number, (torch_ops::is_unclear<torch_ops::holds<T, number>>::value))    \
  TORCH_OPS_SAME(const, const number, (torch_ops::is_unclear<torch_ops::holds<T, number>>::value))
TORCH_OPS_SAME_AS(float)
TORCH_OPS_SAME_AS(double)
#undef TORCH_OPS_SAME_AS
#undef TORCH_OPS_SAME
#undef TORCH_OPS_VARIABLE

}  // namespace TORCH_OPS_LIBRARY
#undef TORCH_OPS_LIBRARY
