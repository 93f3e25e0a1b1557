// Errors of the C library: exceptions within, a status and a text for its callers.
#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <sstream>
#include <string>

#include "torch_ops.h"

namespace torch_ops {

class Failure : public std::exception {
 public:
  Failure(torch_ops_status status, std::string text) : status(status), text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }
  const torch_ops_status status;

 private:
  std::string text_;
};

// An entry of an index that is not a row of its axis.
struct BadEntry {
  int64_t position, value, bound;
  bool from_end = false;    // entries may be from -bound on
  int64_t coordinate = -1;  // of a point: which one; otherwise the entry is a number
};

// What callers on this thread can then query too.
[[noreturn]] void fail_at_entry(const BadEntry& entry);

template <class... Parts>
[[noreturn]] void fail(torch_ops_status status, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw Failure(status, text.str());
}

// What callers on this thread can query after a failure.
void remember_failure(const char* function, const char* text) noexcept;

// Runs a function of the API, and turns exceptions into its status.
template <class Body>
torch_ops_status guarded(const char* function, Body&& body) noexcept {
  try {
    body();
    return TORCH_OPS_SUCCESS;
  } catch (const Failure& failure) {
    remember_failure(function, failure.what());
    return failure.status;
  } catch (const std::bad_alloc&) {
    remember_failure(function, "out of memory on the host");
    return TORCH_OPS_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    remember_failure(function, error.what());
  } catch (...) {
    remember_failure(function, "an exception of an unknown type");
  }
  return TORCH_OPS_INTERNAL_ERROR;
}

}  // namespace torch_ops
