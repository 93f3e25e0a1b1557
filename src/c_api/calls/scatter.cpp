// Reductions by an entry for each row: compositions of the launchers of src/scatter.
#include <tuple>
#include <type_traits>

#include "c_api/calls/rows.h"
#include "c_api/frame/dispatch.h"

namespace torch_ops {
namespace {

// A call on the device or on the CPU, which `on` selects.
template <class On, class... Errors>
class Scatter {
 public:
  Scatter(On on, const RowCall& rows, const PlanArrays& plan, bool repeatable,
          const Errors&... errors)
      : on_(on), rows_(rows), plan_(plan), repeatable_(repeatable), errors_(errors...) {}

  void reduce(torch_ops_reduce reduce, bool onto) const {
    check_axis_not_empty(rows_.all_entries(), rows_.entry_kind());
    switch (reduce) {
      case TORCH_OPS_REDUCE_SUM:
        return dispatch_summed(rows_.dtype, [&](auto value) {
          using Value = decltype(value);
          onto ? add_onto<Value>() : write<Value>([&](void* to) { sum<Value, Value>(to); });
        });
      case TORCH_OPS_REDUCE_MEAN:
        return dispatch_dtype(rows_.dtype, [&](auto value) { mean<decltype(value)>(); });
      case TORCH_OPS_REDUCE_PROD:
        return dispatch_summed(rows_.dtype, [&](auto value) {
          using Value = decltype(value);
          write<Value>([&](void* to) {
            launch([&](const auto&... site) {
              return kernels::scatter_prod(on_, reduce_call<Value, Value>(rows_, to, plan_),
                                           site...);
            });
          });
        });
      default:
        return dispatch_ordered(
            [&](auto value) { best<decltype(value)>(reduce == TORCH_OPS_REDUCE_AMAX); });
    }
  }

  void arg(bool largest) const {
    check_axis_not_empty(rows_.all_entries(), rows_.entry_kind());
    dispatch_ordered([&](auto value) {
      write<int64_t>([&](void* to) { positions<decltype(value)>(largest, to); });
    });
  }

 private:
  static constexpr bool kOnCpu = std::is_same_v<On, OnCpu>;

  // Launches for the call's index.
  template <class Launch>
  void launch(Launch&& launch) const {
    std::apply(
        [&](const auto&... errors) {
          checked(on_, rows_.index_array(), rows_.entry_kind(), launch, errors...);
        },
        errors_);
  }

  template <class Result, class Write>
  void write(Write&& write) const {
    write_aligned(on_, rows_.to, count() * static_cast<int64_t>(sizeof(Result)), write);
  }

  int64_t count() const { return rows_.batch * rows_.axis_size * rows_.inner; }

  // check_reduce has checked that the kernels accept the dtype.
  template <class Use>
  void dispatch_ordered(Use&& use) const {
    dispatch_dtype(rows_.dtype, [&](auto value) {
      using Value = decltype(value);
      if constexpr (!std::is_unsigned_v<Value> || sizeof(Value) == 1) use(value);
    });
  }

  template <class Value, class Result>
  void sum(void* to) const {
    const auto call = reduce_call<Value, Result>(rows_, to, plan_);
    launch([&](const auto&... site) {
      if constexpr (kOnCpu) {
        return kernels::scatter_add(on_, call);
      } else {
        return kernels::scatter_add(on_, call, repeatable_, site...);
      }
    });
  }

  // Adds to the result; each element of it is rounded once.
  template <class Value>
  void add_onto() const {
    using Sum = std::conditional_t<std::is_integral_v<Value>, Value, SumOf<Value>>;
    const auto add = [&](const auto&... site) {
      return kernels::scatter_add_to<Value>(on_, reduce_call<Value, Value>(rows_, rows_.to),
                                            site...);
    };
    if constexpr (kOnCpu) {
      return launch(add);
    } else {
      if constexpr (std::is_same_v<SumOf<Value>, Value>) {
        const bool in_any_order = !repeatable_ || std::is_integral_v<Value>;
        if (in_any_order && reinterpret_cast<uintptr_t>(rows_.to) % kAligned == 0) {
          return launch(add);
        }
      }
      const Room<On, Sum> sums(count());
      sum<Value, Sum>(sums.get());
      for_each(on_, AddSums<Sum, Value>{sums.get(), static_cast<Value*>(rows_.to)}, count());
    }
  }

  // From sums that are not rounded: those of 16-bit numbers may overflow where the mean does not.
  template <class Value>
  void mean() const {
    using Summed = decltype(summed_as(Value()));
    using Sum = std::conditional_t<std::is_integral_v<Value>, Summed, SumOf<Summed>>;
    using Read = std::conditional_t<std::is_integral_v<Value>, Value, Sum>;  // with its sign
    const Room<On, Sum> sums(count());
    sum<Summed, Sum>(sums.get());
    // Without elements, only count() bounds the counts: there may be as many rows as int64 counts.
    if (count() == 0) return;
    const Room<On, uint64> ones(rows_.all_entries()), counts(rows_.batch * rows_.axis_size);
    const uint64 one = 1;
    fill_all(on_, ones.get(), rows_.all_entries(), sizeof(one), FillPattern(&one, sizeof(one)));
    Scatter of_ones = *this;
    RowCall& counted = of_ones.rows_;
    counted.from = ones.get();
    counted.to = counts.get();
    counted.inner = 1;
    counted.dtype = TORCH_OPS_UINT64;
    counted.element_bytes = sizeof(uint64);
    of_ones.template sum<uint64, uint64>(counts.get());
    for_each(on_,
             DivideSums<Read, Value>{reinterpret_cast<const Read*>(sums.get()), counts.get(),
                                     rows_.inner, static_cast<Value*>(rows_.to)},
             count());
  }

  template <class Value>
  void positions(bool largest, void* to) const {
    const auto call = reduce_call<Value, int64_t>(rows_, to, plan_);
    launch([&](const auto&... site) { return kernels::scatter_arg(on_, call, largest, site...); });
  }

  template <class Value>
  void best(bool largest) const {
    const auto call = reduce_call<Value, Value>(rows_, rows_.to, plan_);
    launch([&](const auto&... site) { return kernels::scatter_best(on_, call, largest, site...); });
  }

  On on_;
  RowCall rows_;
  PlanArrays plan_;
  bool repeatable_;
  std::tuple<const Errors&...> errors_;
};

}  // namespace

void check_reduce(torch_ops_reduce reduce, torch_ops_dtype dtype) {
  if (reduce < TORCH_OPS_REDUCE_SUM || reduce > TORCH_OPS_REDUCE_AMIN) {
    fail(TORCH_OPS_INVALID_ARGUMENT, "reduce must be one of TORCH_OPS_REDUCE_SUM (",
         TORCH_OPS_REDUCE_SUM, ") to TORCH_OPS_REDUCE_AMIN (", TORCH_OPS_REDUCE_AMIN,
         "), but it is ", reduce);
  }
  const bool ordered = reduce == TORCH_OPS_REDUCE_AMAX || reduce == TORCH_OPS_REDUCE_AMIN;
  if (ordered &&
      (dtype == TORCH_OPS_UINT16 || dtype == TORCH_OPS_UINT32 || dtype == TORCH_OPS_UINT64)) {
    fail(TORCH_OPS_UNSUPPORTED_DTYPE,
         "dtype must not be uint16 (7), uint32 (9) or uint64 (11) for TORCH_OPS_REDUCE_AMAX and "
         "AMIN, but it is ",
         dtype);
  }
}

void scatter(OnCpu on, const ScatterCall& call) {
  Scatter(on, call.rows, {}, call.repeatable).reduce(call.reduce, call.onto);
}

void scatter_arg(OnCpu on, const RowCall& call, bool largest) {
  Scatter(on, call, {}, false).arg(largest);
}

#ifdef TORCH_OPS_WITH_CUDA
void scatter(OnCuda on, const ScatterCall& call, const IndexErrorSite& errors) {
  Scatter(on, call.rows, call.plan, call.repeatable, errors).reduce(call.reduce, call.onto);
}

void scatter_arg(OnCuda on, const RowCall& call, bool largest, const IndexErrorSite& errors) {
  Scatter(on, call, {}, false, errors).arg(largest);
}
#endif

}  // namespace torch_ops
