// The entry point of every test executable.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include "folder.hpp"

const char* const galvatron::test::tests_dir = GALVATRON_TESTS_DIR;
