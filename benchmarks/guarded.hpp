// What all benchmark programs do about errors.
#pragma once

#include <cstdio>
#include <exception>

/// Runs body(argc, argv); an error becomes a line of standard error and exit code 1.
template <class Body>
int guarded(const char* program, int argc, char** argv, Body body) {
  try {
    return body(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 1;
  }
}
