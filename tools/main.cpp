// galvatron: profiles clusters, searches plans, prices them and trains with them.
#include <unistd.h>

#include <algorithm>
#include <exception>

#include "commands.hpp"
#include "output.hpp"
#include "signals.hpp"

int main(int count, char** values) {
  using namespace galvatron::tools;
  Common common;
  try {
    prepare_streams();
    prepare_terminations();
    if (::isatty(STDERR_FILENO) != 0) end_on_signals("interrupted");  // below a progress bar
    run_command(Arguments(values + std::min(count, 1), values + count), common);
    return 0;
  } catch (...) {
    return report_failure(std::current_exception(), common);
  }
}
