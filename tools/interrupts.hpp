// Ctrl-C and SIGTERM as a request to end soon.
#pragma once

#include <signal.h>

#include <array>
#include <atomic>
#include <utility>

namespace galvatron::tools {

/// While it lives, the first SIGINT or SIGTERM only sets a flag; the second ends the process at once. Signals that were
/// ignored stay so. One at a time.
class Interrupts {
 public:
  Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;
  ~Interrupts();

  /// True from the first signal on.
  [[nodiscard]] const std::atomic<bool>& asked() const;
  /// The number of the last one's signal; 0 before.
  [[nodiscard]] static int signal();

 private:
  std::array<struct sigaction, 2> before_{};
};

}  // namespace galvatron::tools
