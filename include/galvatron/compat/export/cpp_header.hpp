// A plan as a C++ header: the Strategy<> types of its layers, and the plan as a constant. See plan/frozen.hpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <galvatron/compat/export/exported.hpp>
#include <galvatron/core/error.hpp>
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

/// `galvatron::Strategy<galvatron::DataParallel<2>, galvatron::TensorParallel<2>>`: policies that differ from their
/// default.
inline std::string cpp_strategy(const StrategySpec& spec) {
  const auto policy = [](const std::string& name, const std::string& argument) {
    return ", galvatron::" + name + "<" + argument + ">";
  };
  std::string out = "galvatron::Strategy<galvatron::DataParallel<" + std::to_string(spec.data) + ">";
  if (spec.zero != 0) out += policy("ZeRO", std::to_string(spec.zero));
  if (spec.tensor != 1)
    out += policy("TensorParallel", std::to_string(spec.tensor) + (spec.strided ? ", galvatron::strided" : ""));
  if (spec.context != 1) out += policy("ContextParallel", std::to_string(spec.context));
  if (spec.sequence != SequenceKind::none)
    out += policy("SequenceParallel", std::string("galvatron::") + name_of(spec.sequence));
  if (spec.recompute != RecomputeKind::cheap)
    out += policy("Recompute", std::string("galvatron::") + name_of(spec.recompute));
  return out + ">";
}

constexpr const char* cpp_name(ScheduleKind kind) {
  constexpr std::array names{"gpipe", "one_f_one_b", "interleaved", "zb_h1"};
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
    for (std::size_t i = 0; i < plan.layers.size(); ++i) of(plan.layers[i]).layers.push_back(static_cast<int>(i));
    of(plan.embedding).ends.push_back("the embedding");
    of(plan.head).ends.push_back("the head");
  }
  /// `Strategy1::spec`, with the experts that the type does not say.
  [[nodiscard]] std::string spec(const StrategySpec& spec) const {
    const std::string text = name(spec) + "::spec";
    return spec.expert == 1 ? text : "galvatron::with_experts(" + text + ", " + std::to_string(spec.expert) + ")";
  }
  [[nodiscard]] std::string name(const StrategySpec& spec) const {
    const auto at = std::ranges::find_if(types_, [&](const Type& t) { return t.spec == typed(spec); });
    return "Strategy" + std::to_string(at - types_.begin());
  }
  /// The declarations, each with who uses it, and their list.
  [[nodiscard]] std::string declarations() const {
    std::string out;
    std::string list;
    for (const Type& type : types_) {
      std::string users = type.layers.empty() ? "" : layers_text(type.layers);
      for (const std::string& end : type.ends) users += (users.empty() ? "" : ", ") + end;
      out += "/// Of " + users + ".\nusing " + name(type.spec) + " = " + cpp_strategy(type.spec) + ";\n";
      list += (list.empty() ? "" : ", ") + name(type.spec);
    }
    return out +
           "/// What a program instantiates that trains with this plan.\nusing Strategies = galvatron::TypeList<" +
           list + ">;\n";
  }

 private:
  struct Type {
    StrategySpec spec;
    std::vector<int> layers;
    std::vector<std::string> ends;
  };
  static StrategySpec typed(StrategySpec spec) {
    spec.expert = 1;
    return spec;
  }
  Type& of(const StrategySpec& spec) {
    for (Type& type : types_)
      if (type.spec == typed(spec)) return type;
    types_.push_back({typed(spec), {}, {}});
    return types_.back();
  }

  std::vector<Type> types_;
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
  const auto number = [](auto n) { return std::to_string(n); };

  std::string stages;
  for (const PlanStage& s : plan.stages)
    stages += "        {.first_layer = " + number(s.first_layer) + ", .last_layer = " + number(s.last_layer) +
              ", .first_rank = " + number(s.first_rank) + ", .rank_count = " + number(s.rank_count) + "},\n";
  std::string runs;
  std::size_t run_count = 0;
  for (std::size_t i = 0; i < plan.layers.size();) {
    std::size_t end = i + 1;
    while (end < plan.layers.size() && plan.layers[end] == plan.layers[i]) ++end;
    runs += "        {.layers = " + number(end - i) + ", .strategy = " + types.spec(plan.layers[i]) + "},\n";
    ++run_count;
    i = end;
  }
  std::string predicted;
  for (const PredictedStage& s : plan.predicted.stages)
    predicted += "        {.peak = {" + number(s.peak.count) + "}, .forward = {" + cpp_number(s.forward.value) +
                 "}, .backward = {" + cpp_number(s.backward.value) + "}},\n";
  const auto array = [](const char* field, const std::string& items) {
    return items.empty() ? std::string() : "    ." + std::string(field) + " = {{\n" + items + "    }},\n";
  };

  Exported out;
  std::string& t = out.text;
  t = "// " + detail::export_title(plan) +
      ".\n// Made by `galvatron export --to header`: export again instead of editing.\n";
  t[3] = 'A';
  t += "// clang-format off\n#pragma once\n\n#include <galvatron/plan/frozen.hpp>\n\nnamespace " + std::string(name) +
       " {\n\n" + types.declarations() + "\ninline constexpr galvatron::FrozenPlan<" + number(plan.stages.size()) +
       ", " + number(run_count) + ", " + number(plan.predicted.stages.size()) + "> plan{\n";
  const auto field = [&](const std::string& key, const std::string& value) {
    t += "    ." + key + " = " + value + ",\n";
  };
  field("model", detail::cpp_text(plan.model));
  field("cluster", detail::cpp_text(plan.cluster));
  field("global_batch", number(plan.global_batch));
  field("sequence_length", number(plan.sequence_length));
  field("precision", std::string("galvatron::Precision::") + name_of(plan.precision));
  field("microbatches", number(plan.microbatches));
  field("schedule", std::string("galvatron::ScheduleKind::") + detail::cpp_name(plan.schedule));
  field("virtual_stages", number(plan.virtual_stages));
  if (plan.moments != Precision::fp32) field("moments", std::string("galvatron::Precision::") + name_of(plan.moments));
  if (!plan.overlap) field("overlap", "false");
  t += array("stages", stages) + array("runs", runs);
  field("embedding", types.spec(plan.embedding));
  field("head", types.spec(plan.head));
  field("iteration", "{" + cpp_number(plan.predicted.iteration.value) + "}");
  field("samples_per_second", cpp_number(plan.predicted.samples_per_second));
  field("tokens_per_second", cpp_number(plan.predicted.tokens_per_second));
  field("mfu", cpp_number(plan.predicted.mfu));
  field("budget", "{" + number(plan.predicted.budget.count) + "}");
  t += array("predicted_stages", predicted);
  t += "};\nstatic_assert(galvatron::plan_version == " + number(plan.version) +
       ", \"galvatron: this plan was exported for another version; export it again.\");\n\n}  // namespace " +
       std::string(name) + "\n";
  return out;
}

}  // namespace galvatron
