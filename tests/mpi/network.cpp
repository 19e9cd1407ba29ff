// Two hosts with two ranks each that talk over TCP: network namespaces of this machine, joined by a cable (veth), with
// host names of their own. Laying them out takes root; otherwise ranks talk over TCP inside of one host.
//
//   namespace a, host gv..a, 10.77.n.1          namespace b, host gv..b, 10.77.n.2
//   mpirun, ranks 0 and 1       <== veth ==>    orted, ranks 2 and 3
#include <unistd.h>

#include <string>

#include "training.hpp"

namespace {

/// The two hosts; away with them in the end.
class Hosts {
 public:
  explicit Hosts(const Folder& folder) : folder_(folder) {
    const std::string cable = R"shell(
ip netns add N-a && ip netns add N-b || exit 1
ip link add N-a netns N-a type veth peer name N-b netns N-b || exit 1
ip -n N-a addr add NET.1/24 dev N-a && ip -n N-b addr add NET.2/24 dev N-b || exit 1
for end in a b; do ip -n N-$end link set lo up && ip -n N-$end link set N-$end up || exit 1; done
ip netns exec N-a unshare --uts hostname N-a && ip netns exec N-b unshare --uts hostname N-b
)shell";
    const Ran ran = folder.shell(named(cable));
    laid_out = ran.code == 0;
    why = ran.err.substr(0, ran.err.find('\n'));
    folder.write("agent", named("#!/bin/sh\nshift\nexec ip netns exec N-b unshare --uts sh -c \"hostname N-b; $*\"\n"));
    laid_out = laid_out && folder.shell("chmod +x agent").code == 0;
  }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;
  ~Hosts() { static_cast<void>(folder_.shell(named("ip netns del N-a; ip netns del N-b"))); }

  /// A line of shell on the first host.
  [[nodiscard]] std::string on_first(const std::string& line) const {
    return named("ip netns exec N-a unshare --uts sh -c \"hostname N-a; exec " + line + "\"");
  }
  /// mpirun of both.
  [[nodiscard]] std::string mpirun() const {
    return named(MPIRUN " --allow-run-as-root --mca plm_rsh_agent " + folder_.path().string() +
                 "/agent --host NET.1:2,NET.2:2 --bind-to none");
  }
  [[nodiscard]] std::string named(std::string text) const {
    const std::string number = std::to_string(::getpid() % 1'000'000);
    const std::string network = "10.77." + std::to_string(::getpid() % 250 + 1);
    for (std::size_t at = 0; (at = text.find("NET", at)) != std::string::npos;) text.replace(at, 3, network);
    for (std::size_t at = 0; (at = text.find("N-", at)) != std::string::npos;) text.replace(at, 2, "gv" + number);
    return text;
  }

  bool laid_out = false;
  std::string why;

 private:
  const Folder& folder_;
};

constexpr Shape shape{.stages = 2, .tensor = 2, .microbatches = 2};

}  // namespace

TEST_CASE("ranks on two hosts train over TCP with the bits of threads, and a killed one ends them all") {
  const Folder folder;
  folder.write_text();
  folder.write("p.json", plan_of(shape).dump());
  const std::string train = "train --plan p.json --data text.txt --steps 5 --lr 0.01 --quiet --json --metrics ";
  REQUIRE(folder.run(train + "t.jsonl").code == 0);
  const auto expected = curve(folder.read("t.jsonl"));
  const Hosts hosts(folder);
  if (!hosts.laid_out) {
    MESSAGE("skipped: this machine lays out no network namespaces (" << hosts.why << "); TCP inside of one host only");
    const Ran ran = folder.shell(mpirun(4, "--mca btl tcp,self") + "$G " + train + "n.jsonl");
    CAPTURE(ran.err);
    CHECK(ran.code == 0);
    CHECK(curve(folder.read("n.jsonl")) == expected);
    return;
  }
  const Ran ran = folder.shell(hosts.on_first(hosts.mpirun() + " -np 4 $G " + train + "n.jsonl"));
  CAPTURE(ran.err);
  REQUIRE(ran.code == 0);
  CHECK(curve(folder.read("n.jsonl")) == expected);
  const Ran bytes = folder.shell(hosts.named("ip netns exec N-a cat /sys/class/net/N-a/statistics/tx_bytes"));
  CAPTURE(bytes.err);
  if (bytes.code == 0) CHECK(std::stoll(bytes.out) > 100'000);  // activations and gradients went over the cable

  for (const int victim : {3, 0}) {  // on the other host, and beside mpirun
    CAPTURE(victim);
    folder.write("m.jsonl", "");
    const Ran killed = folder.shell(
        process_functions +
        hosts.on_first("$G train --plan p.json --data text.txt --steps 1000000 --quiet --json --metrics m.jsonl "
                       "--launcher mpi --mpirun '" +
                       hosts.mpirun() + "'") +
        " > out.json & job=$!\nwait_for m.jsonl\nkill -9 $(pid_of " + std::to_string(victim) +
        ")\nbegin=$(date +%s); wait $job; echo \"code $?\"; echo \"seconds $(($(date +%s) - begin))\"; echo \"left "
        "$(left)\"; cat out.json");
    CAPTURE(killed.err);
    CAPTURE(killed.out);
    CHECK(killed.out.starts_with("code 4\n"));
    REQUIRE(killed.out.find("seconds ") != std::string::npos);
    CHECK(std::stoi(killed.out.substr(killed.out.find("seconds ") + 8)) <= 10);
    CHECK(killed.out.find("left 0\n") != std::string::npos);
    const std::string host = hosts.named(victim == 3 ? "N-b" : "N-a");
    CHECK(killed.err.find("galvatron: rank " + std::to_string(victim) + " on " + host + " was ended by signal 9") !=
          std::string::npos);
  }
}
