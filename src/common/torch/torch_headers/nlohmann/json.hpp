// torch's ATen/functorch/Interpreter.h includes this header of another library, and torch's wheel
// does not ship it. Two inline functions there mention the names below; they are never called. So
// declarations without definitions suffice: a use would fail at link time.
#pragma once

#include <string>

namespace nlohmann {

struct json {
  json();
  template <class T>
  explicit json(const T&);
  static json parse(const std::string&);
  std::string dump() const;
  template <class T>
  T get() const;
};

}  // namespace nlohmann
