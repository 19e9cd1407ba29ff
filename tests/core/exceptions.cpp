#include <galvatron/core/error.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <string>

#include <doctest/doctest.h>

#include <galvatron/core/file.hpp>

#include "../folder.hpp"

using namespace galvatron;

namespace {

struct Reported {
  int code = -1;
  std::string text;
};

/// What report_exception() makes of what `work` throws.
template <class Work>
Reported reported(const Work& work) {
  const galvatron::test::Folder folder;
  const std::filesystem::path path = folder.path / "err";
  std::fflush(stderr);
  const int kept = ::dup(STDERR_FILENO);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
  ::dup2(file, STDERR_FILENO);
  ::close(file);
  Reported out;
  try {
    work();
  } catch (...) {
    out.code = report_exception();
  }
  std::fflush(stderr);
  ::dup2(kept, STDERR_FILENO);
  ::close(kept);
  out.text = read_text_file(path).value();
  return out;
}

}  // namespace

TEST_CASE("what ends a program is one line, and the exit code of its kind") {
  const auto usage = reported([] { value_or_throw(Result<int>(usage_error("no such model; choose another"))); });
  CHECK(usage.code == 2);
  CHECK(usage.text == "no such model; choose another\n");
  CHECK(reported([] { throw Failure(ErrorKind::infeasible, "nothing fits"); }).code == 3);
  CHECK(reported([] { throw DeviceFailure("the device is gone"); }).code == 4);
  CHECK(reported([] { throw std::bad_alloc(); }).code == 4);
  const auto other = reported([] { throw std::runtime_error("the program's own"); });
  CHECK(other.code == 1);
  CHECK(other.text == "the program's own\n");
  CHECK(reported([] { throw 7; }).code == 1);
  const auto defect = reported([] { throw Failure(ErrorKind::internal, "this cannot be"); });
  CHECK(defect.code == 1);
  CHECK(defect.text.find("this cannot be (") == 0);
  CHECK(defect.text.find("exceptions.cpp:") != std::string::npos);
}
