// What Python makes when it is first asked for, and C++ then finds by a key.
#pragma once

#include <pybind11/pybind11.h>

#include <initializer_list>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch_ops::jit {

// A function of Python's. The thread that lets go of it need not have the GIL.
struct FromPython : pybind11::object {
  FromPython& operator=(pybind11::object function) {
    object::operator=(std::move(function));
    return *this;
  }
  ~FromPython() {
    const pybind11::gil_scoped_acquire gil;
    object::operator=(pybind11::object());
  }
};

inline std::string as_key(std::string key, std::initializer_list<const std::vector<bool>*> flags) {
  for (const std::vector<bool>* bits : flags) {
    key += '_';
    for (const bool bit : *bits) key += bit ? '1' : '0';
  }
  return key;
}

template <class Value>
class MadeByKey {
 public:
  // make() has the GIL. Two threads may make one at the same time; the first that is done is kept.
  template <class Make>
  Value get(const std::string& key, Make&& make) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = made_.find(key);
      if (found != made_.end()) return found->second;
    }
    const pybind11::gil_scoped_acquire gil;
    const Value made = make();
    const std::lock_guard<std::mutex> lock(mutex_);
    return made_.emplace(key, made).first->second;
  }

 private:
  std::mutex mutex_;  // not held while Python makes: it may wait for a thread that asks here
  std::unordered_map<std::string, Value> made_;
};

}  // namespace torch_ops::jit
