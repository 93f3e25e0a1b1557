#include "c_api/frame/failure.h"

#include <cstdio>

namespace torch_ops {
namespace {

// Plain memory: nothing to allocate if memory is short, nothing to destroy when a thread ends.
thread_local char last_error[1024] = "";
thread_local BadEntry last_bad_entry{0, 0, 0};

std::string describe(const BadEntry& entry) {
  std::ostringstream text;
  if (entry.coordinate < 0) {
    text << "index";
  } else {
    text << "coordinates[" << entry.coordinate << "]";
  }
  if (entry.bound == 0) {
    text << " has entries, but the axis has size 0: no entry is allowed";
  } else {
    text << "[" << entry.position << "] is " << entry.value << ", out of range for an axis of size "
         << entry.bound << ": it must be between " << (entry.from_end ? -entry.bound : 0) << " and "
         << entry.bound - 1;
  }
  return text.str();
}

}  // namespace

void fail_at_entry(const BadEntry& entry) {
  last_bad_entry = entry;
  throw Failure(TORCH_OPS_INDEX_OUT_OF_RANGE, describe(entry));
}

void remember_failure(const char* function, const char* text) noexcept {
  std::snprintf(last_error, sizeof(last_error), "%s: %s.", function, text);
}

}  // namespace torch_ops

using torch_ops::last_bad_entry;
using torch_ops::last_error;

extern "C" {

const char* torch_ops_last_error(void) { return last_error; }

torch_ops_status torch_ops_last_index_error(int64_t* position, int64_t* value, int64_t* bound) {
  if (position != nullptr) *position = last_bad_entry.position;
  if (value != nullptr) *value = last_bad_entry.value;
  if (bound != nullptr) *bound = last_bad_entry.bound;
  return TORCH_OPS_SUCCESS;
}

const char* torch_ops_status_string(torch_ops_status status) {
  static constexpr struct {
    torch_ops_status status;
    const char* text;
  } kTexts[] = {{TORCH_OPS_SUCCESS, "success"},
                {TORCH_OPS_NULL_POINTER, "a null pointer"},
                {TORCH_OPS_NEGATIVE_SIZE, "a negative size"},
                {TORCH_OPS_SIZE_OVERFLOW, "sizes whose product overflows"},
                {TORCH_OPS_UNKNOWN_DTYPE, "an unknown dtype"},
                {TORCH_OPS_UNSUPPORTED_DTYPE, "a dtype that the function does not take"},
                {TORCH_OPS_UNKNOWN_INDEX_TYPE, "an unknown index type"},
                {TORCH_OPS_UNKNOWN_MEMORY, "an unknown kind of memory"},
                {TORCH_OPS_MISALIGNED_POINTER, "a misaligned pointer"},
                {TORCH_OPS_WRONG_MEMORY, "memory that the device cannot reach"},
                {TORCH_OPS_SMALL_WORKSPACE, "a workspace that is too small"},
                {TORCH_OPS_INVALID_ARGUMENT, "an invalid argument"},
                {TORCH_OPS_NO_DEVICE, "no CUDA device"},
                {TORCH_OPS_INDEX_OUT_OF_RANGE, "an index out of range"},
                {TORCH_OPS_OUT_OF_MEMORY, "out of memory"},
                {TORCH_OPS_CUDA_ERROR, "a CUDA error"},
                {TORCH_OPS_INTERNAL_ERROR, "an internal error"}};
  for (const auto& each : kTexts) {
    if (each.status == status) return each.text;
  }
  return "an unknown status";
}

}  // extern "C"
