// The lock of a folder of checkpoints: one run at a time, whoever died before.
#include <galvatron/checkpoint/folder.hpp>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include <doctest/doctest.h>

#include "../folder.hpp"

using namespace galvatron;
using train::FolderLock;
using train::LockHolder;

namespace {

std::string refusal(const std::filesystem::path& folder, bool kernel_locks) {
  const auto taken = FolderLock::take(folder, kernel_locks);
  return taken ? "" : taken.error().message;
}

// A process that takes the lock and is killed.
LockHolder killed_holder(const std::filesystem::path& folder, bool kernel_locks) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = FolderLock::take(folder, kernel_locks);
    static_cast<void>(::write(ends[1], lock ? "y" : "n", 1));
    for (;;) ::pause();
  }
  char byte = 0;
  REQUIRE(::read(ends[0], &byte, 1) == 1);
  CHECK(byte == 'y');
  const std::string who =
      "is in use by process " + std::to_string(child) + " on " + LockHolder::self().host + " since ";
  CHECK(refusal(folder, kernel_locks).find(who) != std::string::npos);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
  LockHolder holder = LockHolder::self();
  holder.pid = child;
  return holder;
}

void set_age(const std::filesystem::path& file, std::int64_t seconds) {
  const timespec then{std::time(nullptr) - seconds, 0};
  const timespec times[2] = {then, then};
  REQUIRE(::utimensat(AT_FDCWD, file.c_str(), times, 0) == 0);
}

}  // namespace

TEST_CASE("a second run is refused at once and told who the first one is; the lock ends with its process") {
  for (const bool kernel_locks : {true, false}) {
    CAPTURE(kernel_locks);
    const test::Folder folder;
    const auto saved = folder.path / "saved";
    {
      const auto lock = FolderLock::take(saved, kernel_locks);
      REQUIRE(lock.has_value());
      const std::string why = refusal(saved, kernel_locks);
      CAPTURE(why);
      CHECK(why.starts_with(saved.string() + " is in use by process " + std::to_string(::getpid()) + " on "));
      CHECK(why.find(" UTC; wait until that run has ended, or name another folder") != std::string::npos);
    }
    CHECK_FALSE(std::filesystem::exists(saved));  // it was made for the lock, and nothing is in it
    killed_holder(saved, kernel_locks);
    CHECK(std::filesystem::exists(saved / train::lock_name));  // left behind, and void
    const auto lock = FolderLock::take(saved, kernel_locks);
    REQUIRE(lock.has_value());
  }
}

TEST_CASE("where there are no locks of the kernel, files of other machines and of reused process numbers are judged") {
  const test::Folder folder;
  const auto file = folder.path / train::lock_name;
  LockHolder other = LockHolder::self();
  other.host = "another-machine";
  other.pid = 4711;
  folder.write(train::lock_name, other.text());
  CHECK(refusal(folder.path, false).find("process 4711 on another-machine") != std::string::npos);
  set_age(file, FolderLock::stale.count() - 60);
  CHECK_FALSE(refusal(folder.path, false).empty());
  set_age(file, FolderLock::stale.count() + 60);
  CHECK(refusal(folder.path, false).empty());

  // This process's number, of a process before it.
  LockHolder before = LockHolder::self();
  before.process_begin = "another boot 17";
  folder.write(train::lock_name, before.text());
  CHECK(refusal(folder.path, false).empty());
  before.process_begin.clear();  // unknown: it may run
  folder.write(train::lock_name, before.text());
  CHECK_FALSE(refusal(folder.path, false).empty());
  // With the kernel's locks only these count.
  CHECK(refusal(folder.path, true).empty());
  for (const auto& entry : std::filesystem::directory_iterator(folder.path)) FAIL(entry.path().string());
}

TEST_CASE("a holder shows that it still runs") {
  const test::Folder folder;
  auto lock = FolderLock::take(folder.path, false);
  REQUIRE(lock.has_value());
  set_age(folder.path / train::lock_name, 1000);
  (*lock)->touch();
  struct stat status{};
  REQUIRE(::stat((folder.path / train::lock_name).c_str(), &status) == 0);
  CHECK(std::time(nullptr) - status.st_mtime < 100);
}

TEST_CASE("a folder that cannot be made is told") {
  CHECK(refusal("/dev/null/x", true).find("cannot write /dev/null/x") != std::string::npos);
}
