#include <galvatron/profile/check.hpp>

#include <galvatron/cluster/presets.hpp>

#include <doctest/doctest.h>

#include <string>

#include "../says.hpp"

using namespace galvatron;
using namespace galvatron::train;

TEST_CASE("a profile is doubtful when others had most of the cores, or when no machine has its figures") {
  const Cluster host = host_cluster(4, 2);
  CHECK(why_doubtful(host, 0).empty());
  CHECK(why_doubtful(host, most_others_share).empty());
  CHECK(why_doubtful(host, 0.62) == "other programs took 62 % of the cores while it was measured");
  Cluster slow = host;
  slow.device.memory_bandwidth = 0.7e9;
  CHECK(says(why_doubtful(slow, 0.2),
             "memory of 700 MB/s, less than 1.00 GB/s, which no machine has; other programs "
             "took 20 % of the cores"));
  Cluster fast = host;
  fast.device.memory_bandwidth = 9e12;
  CHECK(says(why_doubtful(fast, 0), "memory of 9.00 TB/s, more than"));
  slow = host;
  slow.device.rates[0].peak_flops = 1e7;
  CHECK(says(why_doubtful(slow, 0), "products in fp32 of 10.0 MFLOP/s, less than"));
}

TEST_CASE("what others take is said from a share on that counts") {
  CHECK(others_text(0.04).empty());
  CHECK(others_text(0.22) == "other programs took 22 % of the cores");
}
