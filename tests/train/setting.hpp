// Numbers of tests that the environment may set, such as counts and seeds of random cases.
#pragma once

#include <cstdlib>

namespace toy {

/// A number that the environment may set.
inline double setting(const char* name, double otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtod(text, nullptr);
}

}  // namespace toy
