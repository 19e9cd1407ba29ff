#include "../../tools/report/report.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "plans.hpp"

using namespace galvatron;
using namespace galvatron::simulate;

namespace {

Simulated simulated_case(simulated::Case c, const std::string& name = "plan.json") {
  Simulation simulation = value_or_throw(simulate_plan(c.plan, c.model, c.cluster));
  PredictionInterval interval = value_or_throw(interval_of(c.plan, c.model, c.cluster, simulation.cost));
  return {name,
          std::move(c.plan),
          std::move(c.model),
          alone(std::move(c.cluster)),
          std::move(simulation),
          std::move(interval)};
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

/// What the script reads.
nlohmann::json data_of(const std::string& html) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const std::size_t begin = html.find(open);
  REQUIRE(begin != std::string::npos);
  const std::size_t end = html.find("</script>", begin);
  return nlohmann::json::parse(html.substr(begin + open.size(), end - begin - open.size()));
}

/// Every element ends where it should, and nothing comes from elsewhere.
void check_html(const std::string& html) {
  REQUIRE(html.starts_with("<!DOCTYPE html>"));
  for (const char* part : {"src=", "href=", "@import", "http:", "https:"}) {
    CAPTURE(part);
    CHECK(!has(html, part));
  }
  for (std::size_t at = html.find("url("); at != std::string::npos; at = html.find("url(", at + 1))
    CHECK(html.substr(at, 5) == "url(#");  // of this page
  const std::string_view markup = std::string_view(html).substr(0, html.find("<script"));
  for (const char* part : {">nan", ">inf", "Mnan", "Vnan", "Hnan", "Hinf"}) CHECK(markup.find(part) == markup.npos);
  std::vector<std::string> open;
  for (std::size_t at = html.find('<', 1); at != std::string::npos; at = html.find('<', at + 1)) {
    const bool closes = html[at + 1] == '/';
    std::string name;
    for (std::size_t i = at + (closes ? 2 : 1); i < html.size() && std::isalnum(static_cast<unsigned char>(html[i]));
         ++i)
      name += html[i];
    const std::size_t end = html.find('>', at);
    REQUIRE(end != std::string::npos);
    REQUIRE(!name.empty());
    if (name == "meta" || html[end - 1] == '/') continue;
    if (closes) {
      REQUIRE(!open.empty());
      REQUIRE(open.back() == name);
      open.pop_back();
      continue;
    }
    open.push_back(name);
    if (name == "script" || name == "style") at = html.find("</" + name + ">", end) - 1;  // not markup
  }
  CHECK(open.empty());
}

}  // namespace

TEST_CASE("a report is one whole page for any plan, and its timeline is the simulation") {
  const auto seed = std::random_device{}();
  MESSAGE("seed ", seed);
  std::mt19937 random(seed);
  for (int n = 0; n < 30; ++n) {
    CAPTURE(n);
    const Simulated s = simulated_case(simulated::random_case(random));
    const std::string html = report_html(s);
    check_html(html);
    CHECK(html.size() < 3'000'000);
    CHECK(has(html, "This plan does not fit") == !s.fits());
    const nlohmann::json data = data_of(html);
    CHECK(data.at("seconds").get<double>() == s.simulation.iteration.value);
    REQUIRE(data.at("tracks").size() == s.plan.stages.size());
    const double length = data.at("length");
    for (std::size_t i = 0; i < s.plan.stages.size(); ++i) {
      const auto& values = data.at("tracks")[i].at("spans");
      REQUIRE(values.size() % 5 == 0);
      double now = 0;
      int forwards = 0;
      for (std::size_t k = 0; k < values.size(); k += 5) {
        REQUIRE(values[k].get<double>() >= 0);
        REQUIRE(values[k + 1].get<double>() > 0);
        now += values[k].get<double>() + values[k + 1].get<double>();
        forwards += (values[k + 2].get<int>() & 15) == static_cast<int>(schedule::Op::forward) ? 1 : 0;
        REQUIRE(values[k + 3].get<int>() < s.plan.microbatches);
      }
      CHECK(now <= length);
      CHECK(forwards == s.plan.microbatches * s.plan.virtual_stages);
    }
  }
}

TEST_CASE("names are harmless, whatever they are") {
  std::mt19937 random(3);
  auto c = simulated::random_case(random);
  c.plan.model = "</title><script>alert(1)</script>\"'&\x01";
  c.plan.cluster = "<img onerror=alert(2)>";
  const Simulated s = simulated_case(c, "</script><b>plan");
  const Simulated other = simulated_case(c, "<svg onload=alert(3)>");
  const std::string html = report_html(s, {other});
  check_html(html);
  for (const char* part : {"<script>alert", "<img", "<b>plan", "<svg onload"}) CHECK(!has(html, part));
  CHECK(has(html, "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;"));
}

TEST_CASE("compared plans stand side by side") {
  std::mt19937 random(5);
  const Simulated s = simulated_case(simulated::random_case(random), "first.json");
  const Simulated other = simulated_case(simulated::random_case(random), "second.json");
  CHECK(!has(report_html(s), "Compared plans"));
  const std::string html = report_html(s, {other});
  check_html(html);
  CHECK(has(html, "Compared plans"));
  CHECK(has(html, "second.json"));
  CHECK(has(html, format_seconds(other.simulation.iteration)));
}

TEST_CASE("a measured run stands beside its prediction") {
  std::mt19937 random(9);
  const Simulated s = simulated_case(simulated::random_case(random));
  Measured measured;
  measured.step.step = 41;
  measured.iteration = s.simulation.iteration * 1.25;
  for (const PlanStage& stage : s.plan.stages)
    for (int rank = 0; rank < stage.rank_count; ++rank) {
      std::vector<Span> spans =
          s.simulation.spans[measured.step.ranks.size() / static_cast<std::size_t>(stage.rank_count)];
      for (Span& span : spans) {
        span.begin = span.begin * 2;
        span.end = span.end * 2;
      }
      measured.step.ranks.push_back(spans);
      measured.peaks.push_back({12345});
    }
  measured.step.seconds = s.simulation.iteration * 2;
  const std::string html = report_html(s, {}, &measured);
  check_html(html);
  CHECK(has(html, "Predicted and measured"));
  CHECK(has(html, "step 42"));
  CHECK(has(html, "25 % slower than predicted"));
  CHECK(has(html, "100 % slower than predicted"));  // the step that the timeline shows
  const nlohmann::json data = data_of(html);
  // Each timeline ends with its iteration: behind it nobody waits.
  for (std::size_t i = 0; i < data.at("tracks").size(); ++i)
    CHECK(data.at("tracks")[i].at("end").get<double>() / data.at("length").get<double>() ==
          doctest::Approx(i % 2 == 0 ? 0.5 : 1));
  CHECK(data.at("tracks").size() == 2 * s.plan.stages.size());
  CHECK(data.at("seconds").get<double>() == measured.step.seconds.value);
}

TEST_CASE("the headline of a run is what was measured, and what was predicted stands beneath") {
  std::mt19937 random(11);
  Simulated s = simulated_case(simulated::random_case(random));
  Measured measured;
  measured.iteration = s.simulation.iteration * 1.6;
  measured.step.seconds = measured.iteration;
  measured.step.ranks.resize(static_cast<std::size_t>(s.plan.ranks()));
  measured.peaks.assign(measured.step.ranks.size(), {123'456'789});
  const std::string predicted = report_html(s);
  const std::string html = report_html(s, {}, &measured);
  check_html(html);
  CHECK(has(html, "<h1>A run of "));
  CHECK(!has(predicted, "<h1>A run of "));
  // The first figure of each.
  const auto headline = [](const std::string& page) {
    const std::size_t at = page.find("<div class=\"tile\"><b>") + 21;
    return page.substr(at, page.find("</b>", at) - at);
  };
  CHECK(headline(predicted) == format_seconds(s.simulation.iteration));
  CHECK(headline(html) == format_seconds(measured.iteration));
  CHECK(has(html, "<small>60 % slower than predicted (" + format_seconds(s.simulation.iteration) + ", "));
  CHECK(has(html, "<b>" + format_count(s.tokens_per_second() / 1.6) + "</b><span>tokens/s</span><small>" +
                      format_count(s.tokens_per_second()) + " predicted"));
  CHECK(has(html, "<b>" + format_bytes({123'456'789}) + "</b>"));
  CHECK(has(html, "<h2>Predicted: Where the time goes"));
  CHECK(has(predicted, "<h2>Where the time goes"));
  CHECK(!has(html, "The machine was busy"));
  measured.others = 0.43;
  CHECK(has(report_html(s, {}, &measured), "Other programs took 43"));
  // A profile that was disturbed shows in an MFU that cannot be.
  CHECK(!has(html, "more than the devices can do"));
  s.simulation.cost.mfu = 1.7;
  CHECK(has(report_html(s), "more than the devices can do"));
}

TEST_CASE("an iteration of very many instructions keeps its report small and says so") {
  const auto model = value_or_throw(find_model("llama2-7b"));
  const auto cluster = value_or_throw(find_cluster("64xa100-80g"));
  const auto plan = simulated::even_plan(model, "64xa100-80g", 8, {.tensor = 8}, 8192, 8192, ScheduleKind::one_f_one_b);
  const std::string html = report_html(simulated_case({plan, model, cluster}));
  check_html(html);
  CHECK(html.size() < 3'000'000);
  CHECK(has(html, "the middle of the iteration is left out, hatched"));
  // What is left out is no waiting: a span of its own, which the legend names.
  CHECK(has(html, "<i class=\"hatched\"></i>left out of this page"));
  CHECK(!has(report_html(simulated_case(
                 {simulated::even_plan(model, "64xa100-80g", 8, {.tensor = 8}, 64, 64, ScheduleKind::one_f_one_b),
                  model, cluster})),
             "<i class=\"hatched\">"));
  const nlohmann::json data = data_of(html);
  const auto left_out = static_cast<int>(data.at("kinds").size()) - 1;
  CHECK(data.at("kinds")[static_cast<std::size_t>(left_out)] == "left out");
  for (const auto& track : data.at("tracks")) {
    const auto& values = track.at("spans");
    double covered = 0;
    double waiting = 0;
    int gaps = 0;
    for (std::size_t k = 0; k < values.size(); k += 5) {
      waiting = std::max(waiting, values[k].get<double>());
      if (values[k + 2] != left_out) continue;
      ++gaps;
      covered += values[k + 1].get<double>();
    }
    CHECK(gaps == 1);
    CHECK(covered > 0.5 * data.at("length").get<double>());
    CHECK(waiting < 0.1 * data.at("length").get<double>());
  }
}

TEST_CASE("numbers are short") {
  CHECK(report::number(1.5) == "1.5");
  CHECK(report::number(-0.001, 1) == "0");
  CHECK(report::number(100, 0) == "100");
  CHECK(report::percent(0.5) == "50\xC2\xA0%");
  CHECK(report::percent(0.0123) == "1.2\xC2\xA0%");
}
