// What all benchmark programs do about their arguments and about errors.
#pragma once

#include <cstdio>
#include <exception>

#include <CLI/CLI.hpp>

/// Reads the command line as `options(app, arguments)` says and runs `body(arguments)`, which returns the exit code. An
/// error becomes a line of standard error: exit code 1, of the command line 2.
template <class Arguments>
int guarded(const char* program, const char* about, int argc, char** argv, void (*options)(CLI::App&, Arguments&),
            int (*body)(const Arguments&)) {
  CLI::App app(about, program);
  Arguments arguments;
  options(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return body(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return 1;
  }
}
