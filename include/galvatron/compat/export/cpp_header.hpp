// A plan as a C++ header: the Strategy<> types of its layers, and the plan as a constant. See plan/frozen.hpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <galvatron/compat/export/exported.hpp>
#include <galvatron/core/error.hpp>
#include <galvatron/core/text.hpp>
#include <galvatron/plan/json.hpp>
#include <galvatron/plan/plan.hpp>
#include <galvatron/strategy/spec.hpp>

namespace galvatron {

namespace detail {

/// A string literal; what is not printable ASCII is escaped.
inline std::string cpp_text(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += std::string("\\") + c;
    } else if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else {
      out += {'\\', static_cast<char>('0' + byte / 64), static_cast<char>('0' + byte / 8 % 8),
              static_cast<char>('0' + byte % 8)};
    }
  }
  return out + "\"";
}

/// A floating-point literal that is the same number; 0 for infinities and NaN, which no JSON plan has.
inline std::string cpp_number(double x) {
  const std::string out = shortest_text(x);
  return out.find_first_of(".e") == std::string::npos ? out + ".0" : out;
}

/// `galvatron::Strategy<galvatron::DataParallel<2>, galvatron::TensorParallel<2>>`: policies that are no default.
inline std::string cpp_strategy(const StrategySpec& spec) {
  std::string out = text_of("galvatron::Strategy<galvatron::DataParallel<", spec.data, ">");
  const auto policy = [&out](const char* name, const auto&... argument) {
    out += text_of(", galvatron::", name, "<", argument..., ">");
  };
  if (spec.zero != 0) policy("ZeRO", spec.zero);
  if (spec.tensor != 1) policy("TensorParallel", spec.tensor, spec.strided ? ", galvatron::strided" : "");
  if (spec.context != 1) policy("ContextParallel", spec.context);
  if (spec.sequence != SequenceKind::none) policy("SequenceParallel", "galvatron::", name_of(spec.sequence));
  if (spec.expert != 1 || spec.expert_tensor != 0)
    policy("ExpertParallel", spec.expert,
           spec.expert_nodes != 1    ? text_of(", ", spec.expert_tensor, ", ", spec.expert_nodes)
           : spec.expert_tensor != 0 ? text_of(", ", spec.expert_tensor)
                                     : "");
  if (spec.dispatch != DispatchKind::plain) policy("ExpertDispatch", "galvatron::", name_of(spec.dispatch));
  if (spec.groups != SequenceGroupKind::fixed) policy("SequenceGroups", "galvatron::", name_of(spec.groups));
  if (spec.shard_kind != ShardKind::even) policy("Shards", "galvatron::", name_of(spec.shard_kind));
  if (spec.recompute != RecomputeKind::cheap) policy("Recompute", "galvatron::", name_of(spec.recompute));
  return out + ">";
}

constexpr const char* cpp_name(ScheduleKind kind) {
  constexpr std::array names{"gpipe", "one_f_one_b", "interleaved", "zb_h1", "zb_2p", "zb_v"};
  return names[static_cast<std::size_t>(kind)];
}

/// False for keywords too.
inline bool is_identifier(std::string_view name) {
  constexpr std::string_view keywords =
      " alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class "
      "compl concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype "
      "default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline "
      "int long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public "
      "register reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch "
      "template this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile "
      "wchar_t while xor xor_eq ";
  if (keywords.find(" " + std::string(name) + " ") != std::string_view::npos) return false;
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  if (name.empty() || !letter(name.front())) return false;
  return std::ranges::all_of(name, [&](char c) { return letter(c) || c == '_' || (c >= '0' && c <= '9'); });
}

/// The distinct strategies of a plan as types Strategy0, Strategy1, ...
class StrategyTypes {
 public:
  explicit StrategyTypes(const Plan& plan) {
    for (const auto& [type, layers] : layers_by(plan, cpp_strategy)) types_.emplace_back(type, layers_text(layers));
    for (const auto& [spec, end] : {std::pair(plan.embedding, "the embedding"), {plan.head, "the head"}}) {
      const std::size_t at = index(spec);
      if (at == types_.size())
        types_.emplace_back(cpp_strategy(spec), end);
      else
        types_[at].second += std::string(", ") + end;
    }
  }
  /// `Strategy1::spec`.
  [[nodiscard]] std::string spec(const StrategySpec& spec) const { return text_of("Strategy", index(spec), "::spec"); }
  /// The declarations, each with who uses it, and their list.
  [[nodiscard]] std::string declarations() const {
    std::string out;
    std::string list;
    int index_of = 0;
    for (const auto& [type, users] : types_) {
      const std::string name = text_of("Strategy", index_of++);
      out += text_of("/// Of ", users, ".\nusing ", name, " = ", type, ";\n");
      list += (list.empty() ? "" : ", ") + name;
    }
    return text_of(out, "/// What a program instantiates that trains with this plan.\nusing Strategies = ",
                   "galvatron::TypeList<", list, ">;\n");
  }

 private:
  [[nodiscard]] std::size_t index(const StrategySpec& spec) const {
    const auto at = std::ranges::find(types_, cpp_strategy(spec), &std::pair<std::string, std::string>::first);
    return static_cast<std::size_t>(at - types_.begin());
  }

  std::vector<std::pair<std::string, std::string>> types_;  // of Strategy0 on, and who uses them
};

/// Lists of a plan's stages as arrays.
struct StageLists {
  std::string declarations;
  std::string names;  ///< of the arrays, in the order of the stages; empty: no stage has one

  /// @param of  whose numbers they are
  StageLists(const Plan& plan, const std::string& name, std::vector<int> PlanStage::* list,
             const char* of = "the ranks") {
    for (std::size_t i = 0; i < plan.stages.size(); ++i)
      if (const std::vector<int>& own = plan.stages[i].*list; !own.empty())
        declarations += text_of("/// Of ", of, " of stage ", i, ".\ninline constexpr std::array ", name, i, "{",
                                joined(own), "};\n");
    for (std::size_t i = 0; i < plan.stages.size() && !declarations.empty(); ++i)
      names += (i > 0 ? ", " : "") + ((plan.stages[i].*list).empty() ? "{}" : text_of(name, i));
  }
};

}  // namespace detail

/// The text of a header that declares, in namespace `name`, the plan as the constant `plan`, its strategies as types
/// Strategy0, Strategy1, ... and their list `Strategies`. Everything that trains is expressed; the alternatives that
/// `explain` tells of are not part of a plan. Errors (usage): `name` is not an identifier that begins with a letter.
inline Result<Exported> export_header(const Plan& plan, std::string_view name = "frozen_plan") {
  if (!detail::is_identifier(name))
    return usage_error(
        "the name \"" + detail::one_line(name, 40) +
        "\" is not a C++ identifier; use letters, digits and _, begin with a letter, and take no keyword");
  using detail::cpp_number;
  const detail::StrategyTypes types(plan);
  const std::string stages = joined(plan.stages, "", [](const PlanStage& s) {
    return text_of("        {.first_layer = ", s.first_layer, ", .last_layer = ", s.last_layer,
                   ", .first_rank = ", s.first_rank, ", .rank_count = ", s.rank_count,
                   s.group == 0 ? std::string() : text_of(", .group = ", s.group), "},\n");
  });
  std::vector<std::pair<const char*, detail::StageLists>> lists;
  for (const RatioList& each : ratio_lists) lists.emplace_back(each.key, detail::StageLists(plan, each.key, each.list));
  lists.emplace_back("rank_groups", detail::StageLists(plan, "rank_groups", &PlanStage::rank_groups));
  lists.emplace_back("chunk_layers",
                     detail::StageLists(plan, "chunk_layers", &PlanStage::chunk_layers, "the virtual stages"));
  std::string runs;
  std::size_t run_count = 0;
  for (std::size_t i = 0; i < plan.layers.size(); ++run_count) {
    std::size_t end = i + 1;
    while (end < plan.layers.size() && plan.layers[end] == plan.layers[i]) ++end;
    runs += text_of("        {.layers = ", end - i, ", .strategy = ", types.spec(plan.layers[i]), "},\n");
    i = end;
  }
  const std::string predicted = joined(plan.predicted.stages, "", [](const PredictedStage& s) {
    return text_of("        {.peak = {", s.peak.count, "}, .forward = {", cpp_number(s.forward.value),
                   "}, .backward = {", cpp_number(s.backward.value), "}},\n");
  });
  Exported out;
  std::string& t = out.text;
  t = text_of("// ", detail::export_title(plan),
              ".\n// Made by `galvatron export --to header`: export again instead of editing.\n// clang-format off\n"
              "#pragma once\n\n#include <galvatron/plan/frozen.hpp>\n\nnamespace ",
              name, " {\n\n", types.declarations(),
              joined(lists, "", [](const auto& list) { return list.second.declarations; }),
              "\ninline constexpr galvatron::FrozenPlan<", plan.stages.size(), ", ", run_count, ", ",
              plan.predicted.stages.size(), "> plan{\n");
  t[3] = 'A';
  const auto field = [&](const char* key, const auto&... value) { t += text_of("    .", key, " = ", value..., ",\n"); };
  const auto array = [&](const char* key, const std::string& items) {
    if (!items.empty()) field(key, "{{\n", items, "    }}");
  };
  field("model", detail::cpp_text(plan.model));
  field("cluster", detail::cpp_text(plan.cluster));
  field("global_batch", plan.global_batch);
  field("sequence_length", plan.sequence_length);
  if (plan.packed) field("packed", "true");
  field("precision", "galvatron::Precision::", name_of(plan.precision));
  field("microbatches", plan.microbatches);
  field("schedule", "galvatron::ScheduleKind::", detail::cpp_name(plan.schedule));
  field("virtual_stages", plan.virtual_stages);
  if (plan.moments != Precision::fp32) field("moments", "galvatron::Precision::", name_of(plan.moments));
  if (!plan.overlap) field("overlap", "false");
  if (plan.expert_imbalance != program::default_expert_imbalance)
    field("expert_imbalance", cpp_number(plan.expert_imbalance));
  if (plan.lsh != LshOptions{})
    field("lsh", "{", plan.lsh.hashes, ", ", plan.lsh.width, ", galvatron::ResidualKind::", name_of(plan.lsh.residual),
          ", ", cpp_number(plan.lsh.rate), ", ", plan.lsh.seed, ", ", cpp_number(plan.lsh.most_rate), "}");
  if (plan.adapters.rank > 0) {
    std::string targets;
    for (const AdapterTarget& target : adapter_targets) targets += plan.adapters.*target.has ? ", true" : ", false";
    field("adapters", "{", plan.adapters.rank, ", ", cpp_number(plan.adapters.alpha), targets, "}");
  }
  array("stages", stages);
  for (const auto& [key, list] : lists)
    if (!list.names.empty()) field(key, "{{", list.names, "}}");
  array("runs", runs);
  field("embedding", types.spec(plan.embedding));
  field("head", types.spec(plan.head));
  field("iteration", "{", cpp_number(plan.predicted.iteration.value), "}");
  field("samples_per_second", cpp_number(plan.predicted.samples_per_second));
  field("tokens_per_second", cpp_number(plan.predicted.tokens_per_second));
  field("mfu", cpp_number(plan.predicted.mfu));
  field("budget", "{", plan.predicted.budget.count, "}");
  array("predicted_stages", predicted);
  t += text_of("};\nstatic_assert(galvatron::plan_version == ", plan.version,
               ", \"galvatron: this plan was exported for another version; export it again.\");\n\n}  // namespace ",
               name, "\n");
  return out;
}

}  // namespace galvatron
