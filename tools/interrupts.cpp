#include "interrupts.hpp"

#include <csignal>
#include <cstddef>

namespace galvatron::tools {

namespace {

constexpr int signals[] = {SIGINT, SIGTERM};
std::atomic<bool> was_asked{false};
std::atomic<int> by{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

extern "C" void ask(int signal) {
  if (was_asked.load()) {
    std::signal(signal, SIG_DFL);
    ::raise(signal);
    return;
  }
  by.store(signal);
  was_asked.store(true);
}

}  // namespace

Interrupts::Interrupts() {
  was_asked.store(false);
  by.store(0);
  for (std::size_t i = 0; i < before_.size(); ++i) {
    ::sigaction(signals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler == SIG_IGN) continue;
    struct sigaction action{};
    action.sa_handler = ask;
    action.sa_flags = SA_RESTART;
    ::sigaction(signals[i], &action, nullptr);
  }
}

Interrupts::~Interrupts() {
  for (std::size_t i = 0; i < before_.size(); ++i) ::sigaction(signals[i], &before_[i], nullptr);
}

const std::atomic<bool>& Interrupts::asked() const { return was_asked; }
int Interrupts::signal() { return by.load(); }

}  // namespace galvatron::tools
