// Which rank a process is, and where rank 0 is found, as launchers tell the processes that they start.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <galvatron/core/error.hpp>

namespace galvatron::comm {

/// The value of an environment variable, or null.
using Variables = std::function<const char*(const char*)>;
inline const char* process_variable(const char* name) { return std::getenv(name); }

/// One process of a job.
struct LaunchEnvironment {
  int rank = 0;
  int size = 1;
  int local_rank = 0;         ///< among the ranks of its host
  std::string address;        ///< of rank 0's host: a name or a number
  std::uint16_t port = 0;     ///< where rank 0 listens
  std::string_view launcher;  ///< "torchrun", "mpirun" or "srun"
  friend bool operator==(const LaunchEnvironment&, const LaunchEnvironment&) = default;
};

namespace detail {

/// The first host of a list as SLURM writes it: `n[007-012,3]-ib,gpu1` begins with `n007-ib`.
inline std::string first_host(std::string_view list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const std::size_t end = list.find(']', i);
    if (end == std::string_view::npos) return {};
    const std::string_view numbers = list.substr(i + 1, end - i - 1);
    host += numbers.substr(0, numbers.find_first_of("-,"));
    i = end;
  }
  return host;
}

/// A port between 20000 and 39999 that follows from a job's name: jobs that share a host have ports of their own.
inline std::uint16_t port_of(std::string_view job) {
  std::uint32_t hash = 2166136261U;  // FNV-1a
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return static_cast<std::uint16_t>(20000 + hash % 20000);
}

}  // namespace detail

/// Errors (usage): no launcher is known by its variables; one of them is missing, no number, or out of range.
///
/// torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; where TORCHELASTIC_USE_AGENT_STORE is True,
/// it listens at that port itself, and rank 0's follows from it and TORCHELASTIC_RUN_ID. mpirun of Open MPI sets
/// OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE and OMPI_COMM_WORLD_LOCAL_RANK; with all ranks on one host, rank 0 is
/// there, otherwise the user gives MASTER_ADDR (mpirun -x MASTER_ADDR=HOST); its port follows from PMIX_NAMESPACE. srun
/// sets SLURM_PROCID, SLURM_NTASKS and SLURM_LOCALID; rank 0 is on the first host of SLURM_JOB_NODELIST, or where srun
/// was called, and its port follows from SLURM_JOB_ID. MASTER_ADDR and MASTER_PORT overrule these.
inline Result<LaunchEnvironment> launch_environment(const Variables& variable = process_variable) {
  struct Launcher {
    const char *name, *rank, *size, *local_rank;
  };
  constexpr std::array launchers{
      Launcher{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK"},
      Launcher{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"},
      Launcher{"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"}};
  const auto is_set = [&](const char* name) { return variable(name) != nullptr; };
  const auto* const known = std::ranges::find_if(launchers, is_set, &Launcher::rank);
  if (known == launchers.end())
    return usage_error(
        "this process does not know its rank: neither RANK nor OMPI_COMM_WORLD_RANK nor SLURM_PROCID is set; start the "
        "ranks with torchrun, mpirun or srun");
  const std::string launcher = known->name;
  const auto text_of = [&](const char* name) { return std::string(is_set(name) ? variable(name) : ""); };
  std::string wrong;
  // A number in [least, most]; the first that is wrong is the error.
  const auto number = [&](const char* name, std::int64_t least, std::int64_t most) -> std::int64_t {
    const std::string text = text_of(name);
    std::int64_t value = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool is_number = !text.empty() && status == std::errc() && end == text.data() + text.size();
    if (is_number && value >= least && value <= most) return value;
    if (wrong.empty())
      wrong = name + (text.empty() ? " is not set" : " is '" + galvatron::detail::one_line(text, 40) + "'") + ", but " +
              launcher + " sets it to a number from " + std::to_string(least) + " to " + std::to_string(most) +
              ": start the ranks with " + launcher;
    return least;
  };
  LaunchEnvironment out;
  out.launcher = known->name;
  out.size = static_cast<int>(number(known->size, 1, 1 << 20));
  out.rank = static_cast<int>(number(known->rank, 0, out.size - 1));
  out.local_rank = static_cast<int>(number(known->local_rank, 0, out.size - 1));
  out.address = text_of("MASTER_ADDR");
  const bool port_given = is_set("MASTER_PORT") || launcher == "torchrun";
  if (port_given) out.port = static_cast<std::uint16_t>(number("MASTER_PORT", 1, 65535));
  const char* no_address = "";
  if (launcher == "torchrun") {
    if (text_of("TORCHELASTIC_USE_AGENT_STORE") == "True")  // torchrun itself listens there
      out.port = detail::port_of(text_of("TORCHELASTIC_RUN_ID") + ":" + text_of("MASTER_PORT"));
    no_address = "MASTER_ADDR is not set, but torchrun sets it to the host of rank 0";
  } else if (launcher == "mpirun") {
    if (!port_given) out.port = detail::port_of(text_of("PMIX_NAMESPACE"));
    if (out.address.empty() && text_of("OMPI_COMM_WORLD_LOCAL_SIZE") == text_of("OMPI_COMM_WORLD_SIZE"))
      out.address = "127.0.0.1";
    no_address =
        "mpirun has started ranks on several hosts and does not say where rank 0 is: give its host with mpirun -x "
        "MASTER_ADDR=HOST";
  } else {
    if (!port_given) out.port = static_cast<std::uint16_t>(20000 + number("SLURM_JOB_ID", 0, INT64_MAX) % 20000);
    if (out.address.empty()) out.address = detail::first_host(text_of("SLURM_JOB_NODELIST"));
    if (out.address.empty()) out.address = text_of("SLURM_LAUNCH_NODE_IPADDR");
    no_address =
        "SLURM_JOB_NODELIST names no host: set MASTER_ADDR to the host of rank 0, or start the ranks with srun";
  }
  if (wrong.empty() && out.address.empty()) wrong = no_address;
  if (!wrong.empty()) return usage_error(std::move(wrong));
  return out;
}

/// The job of which this is one process of several; nothing when this process is alone, whoever started it. Errors
/// (usage): as launch_environment().
///
/// torchrun is known by RANK and WORLD_SIZE, mpirun by OMPI_COMM_WORLD_SIZE, srun by SLURM_STEP_NUM_TASKS: a batch
/// script and a shell within an allocation have SLURM's other variables too.
inline Result<std::optional<LaunchEnvironment>> launched_job(const Variables& variable = process_variable) {
  const auto is_set = [&](const char* name) { return variable(name) != nullptr; };
  const bool torchrun = is_set("RANK") && is_set("WORLD_SIZE");
  if (!torchrun && !is_set("OMPI_COMM_WORLD_SIZE") && !(is_set("SLURM_PROCID") && is_set("SLURM_STEP_NUM_TASKS")))
    return std::nullopt;
  // A stray RANK does not hide another launcher.
  auto env = launch_environment(
      [&](const char* name) { return !torchrun && std::string_view(name) == "RANK" ? nullptr : variable(name); });
  if (!env) return tl::unexpected<Error>(std::move(env.error()));
  if (env->size == 1) return std::nullopt;
  return std::move(*env);
}

}  // namespace galvatron::comm
