// What launchers tell processes of their ranks.
#include <doctest/doctest.h>

#include <map>
#include <string>

#include <galvatron/comm/launch_environment.hpp>

using namespace galvatron;
using comm::LaunchEnvironment;

namespace {

using Variables = std::map<std::string, std::string>;

Result<LaunchEnvironment> parsed(const Variables& variables) {
  return comm::launch_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}
Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}
Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}
std::string error_of(const Variables& variables) {
  const auto result = parsed(variables);
  if (result) return "";
  CHECK(result.error().kind == ErrorKind::usage);
  CHECK(result.error().message.find('\n') == std::string::npos);
  return result.error().message;
}

const Variables torch = {
    {"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "gpu01"}, {"MASTER_PORT", "29500"}};
const Variables mpi = {{"OMPI_COMM_WORLD_RANK", "6"},
                       {"OMPI_COMM_WORLD_SIZE", "8"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "6"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "8"},
                       {"PMIX_NAMESPACE", "1354104833"}};
const Variables slurm = {{"SLURM_PROCID", "3"},
                         {"SLURM_NTASKS", "4"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_JOB_ID", "70123"},
                         {"SLURM_JOB_NODELIST", "gpu[007-009,12],login1"}};

}  // namespace

TEST_CASE("torchrun's variables") {
  CHECK(*parsed(torch) == LaunchEnvironment{5, 8, 1, "gpu01", 29500, "torchrun"});
  const Variables busy = with(torch, "TORCHELASTIC_USE_AGENT_STORE", "True");  // torchrun listens at its port
  const auto moved = parsed(busy);
  REQUIRE(moved);
  CHECK(moved->port >= 20000);
  CHECK(moved->port != 29500);
  CHECK(parsed(with(busy, "RANK", "0"))->port == moved->port);
  CHECK(parsed(with(busy, "MASTER_PORT", "29501"))->port != moved->port);
  CHECK(error_of(with(busy, "MASTER_PORT", "x")).starts_with("MASTER_PORT is 'x'"));
  Variables both = torch;
  both.insert(slurm.begin(), slurm.end());
  CHECK(parsed(both)->launcher == "torchrun");
}

TEST_CASE("srun's variables, and what overrules them") {
  CHECK(*parsed(slurm) == LaunchEnvironment{3, 4, 1, "gpu007", 30123, "srun"});
  CHECK(parsed(with(with(slurm, "MASTER_PORT", "77"), "MASTER_ADDR", "10.0.0.1")) ==
        LaunchEnvironment{3, 4, 1, "10.0.0.1", 77, "srun"});
  const Variables no_list = with(without(slurm, "SLURM_JOB_NODELIST"), "SLURM_LAUNCH_NODE_IPADDR", "10.1.2.3");
  CHECK(parsed(no_list)->address == "10.1.2.3");
}

TEST_CASE("mpirun's variables: rank 0 is on the only host, or where the user says") {
  const auto one_host = parsed(mpi);
  REQUIRE(one_host);
  CHECK(*one_host == LaunchEnvironment{6, 8, 6, "127.0.0.1", one_host->port, "mpirun"});
  CHECK(one_host->port >= 20000);
  CHECK(one_host->port < 40000);
  CHECK(parsed(with(mpi, "PMIX_NAMESPACE", "1354104834"))->port != one_host->port);
  const Variables several = with(with(mpi, "OMPI_COMM_WORLD_LOCAL_SIZE", "4"), "OMPI_COMM_WORLD_LOCAL_RANK", "2");
  CHECK(error_of(several).find("mpirun -x MASTER_ADDR=HOST") != std::string::npos);
  CHECK(parsed(with(with(several, "MASTER_ADDR", "gpu1"), "MASTER_PORT", "77")) ==
        LaunchEnvironment{6, 8, 2, "gpu1", 77, "mpirun"});
  Variables both = mpi;  // mpirun in a batch script of SLURM
  both.insert(slurm.begin(), slurm.end());
  CHECK(parsed(both)->launcher == "mpirun");
}

TEST_CASE("a process is one of a job when a launcher has started several") {
  const auto launcher_of = [](const Variables& variables) {
    const auto job = comm::launched_job([&](const char* name) -> const char* {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
    if (!job) return "error: " + job.error().message;
    return *job ? std::string((*job)->launcher) + " " + std::to_string((*job)->size) : "alone";
  };
  CHECK(launcher_of({}) == "alone");
  CHECK(launcher_of(torch) == "torchrun 8");
  CHECK(launcher_of(mpi) == "mpirun 8");
  const Variables step = with(slurm, "SLURM_STEP_NUM_TASKS", "4");
  CHECK(launcher_of(step) == "srun 4");
  CHECK(launcher_of(slurm) == "alone");  // a batch script
  CHECK(launcher_of(with(with(torch, "WORLD_SIZE", "1"), "RANK", "0")).starts_with("error: LOCAL_RANK"));
  CHECK(launcher_of(with(with(with(torch, "WORLD_SIZE", "1"), "RANK", "0"), "LOCAL_RANK", "0")) == "alone");
  CHECK(launcher_of(with(with(mpi, "OMPI_COMM_WORLD_SIZE", "1"), "OMPI_COMM_WORLD_RANK", "0"))
            .starts_with("error: OMPI_COMM_WORLD_LOCAL_RANK"));
  CHECK(launcher_of({{"RANK", "3"}}) == "alone");
  CHECK(launcher_of(with(step, "RANK", "3")) == "srun 4");
  CHECK(launcher_of(without(torch, "LOCAL_RANK")).starts_with("error: LOCAL_RANK is not set"));
  CHECK(launcher_of(with(torch, "WORLD_SIZE", "many")).starts_with("error: WORLD_SIZE is 'many'"));
}

TEST_CASE("the first host of SLURM's lists") {
  using comm::detail::first_host;
  CHECK(first_host("gpu1") == "gpu1");
  CHECK(first_host("gpu1,gpu2") == "gpu1");
  CHECK(first_host("gpu[3,5-9]") == "gpu3");
  CHECK(first_host("gpu[003-009]-ib.site,a") == "gpu003-ib.site");
  CHECK(first_host("r[1-2]n[04-08]") == "r1n04");
  CHECK(first_host("gpu[1-2").empty());
  CHECK(first_host("").empty());
}

TEST_CASE("what is missing, malformed or out of range is named") {
  CHECK(error_of({}) ==
        "this process does not know its rank: neither RANK nor OMPI_COMM_WORLD_RANK nor SLURM_PROCID is set; start the "
        "ranks with torchrun, mpirun or srun");
  CHECK(error_of(without(torch, "WORLD_SIZE")) ==
        "WORLD_SIZE is not set, but torchrun sets it to a number from 1 to 1048576: start the ranks with torchrun");
  CHECK(error_of(with(torch, "RANK", "8")) ==
        "RANK is '8', but torchrun sets it to a number from 0 to 7: start the ranks with torchrun");
  for (const char* value : {"", "-1", "two", "3x", " 3", "99999999999999999999"}) {
    CHECK(error_of(with(torch, "LOCAL_RANK", value)).starts_with("LOCAL_RANK is "));
    CHECK(error_of(with(slurm, "SLURM_NTASKS", value)).starts_with("SLURM_NTASKS is "));
  }
  CHECK(error_of(with(torch, "MASTER_PORT", "65536")).starts_with("MASTER_PORT is '65536'"));
  CHECK(error_of(without(torch, "MASTER_PORT")).starts_with("MASTER_PORT is not set"));
  CHECK(error_of(without(torch, "MASTER_ADDR")) ==
        "MASTER_ADDR is not set, but torchrun sets it to the host of rank 0");
  CHECK(error_of(with(slurm, "SLURM_JOB_NODELIST", "gpu[1-2")).starts_with("SLURM_JOB_NODELIST names no host"));
  CHECK(error_of(without(slurm, "SLURM_JOB_ID")).starts_with("SLURM_JOB_ID is not set"));
  CHECK(error_of(with(torch, "RANK", "7\n\x1b[31mred")).starts_with("RANK is '7??[31mred'"));
}
