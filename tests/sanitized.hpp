// Whether the tests run under sanitizers, with which programs are several times slower and larger and take terabytes of
// addresses: limits of memory (ulimit -v) end them at once.
#pragma once

namespace galvatron::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace galvatron::test
