// What must hold of a reader's answer, whatever the input: libFuzzer keeps the input that ends the program.
#pragma once

#include <cstdlib>
#include <string>

#include <galvatron/core/error.hpp>

inline void require(bool condition) {
  if (!condition) std::abort();
}
/// An error is one line.
inline void require_one_line(const galvatron::Error& error) {
  require(!error.message.empty() && error.message.find('\n') == std::string::npos);
}
