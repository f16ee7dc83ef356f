// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "workplace.hpp"

using namespace hetsched;
using hetsched::test::workplace;

namespace {

void fill(const workplace& w) {
  w.put("pipeline.json", R"({"format": "hetsched/pipeline", "version": 1, "microbatches": 12, "forward_s": [0.01, 0.012, 0.01],
    "backward_s": [0.02, 0.02, 0.02], "transfer_s": [0.02, 0.03]})");
  for (const std::string name : {"1f1b", "h1f1b", "zb_v"})
    REQUIRE(w.run("hetsched-simulate --pipeline pipeline.json --schedule " + name + " --trace " + name + ".json").status == 0);
}

nlohmann::json compared(const workplace& w, const std::string& options) {
  const auto result = w.run("hetsched-compare-timeline --json " + options);
  INFO(options, ": ", result.errors);
  REQUIRE(result.status == 0);
  CHECK(result.complaints().empty());
  return nlohmann::json::parse(result.output);
}

}  // namespace

TEST_CASE("a simulated iteration compared with itself: what hetsched-simulate says, and no difference") {
  const workplace w;
  fill(w);
  const std::string sources[] = {"--predicted h1f1b.json", "--pipeline pipeline.json --schedule h1f1b"};
  const auto simulated =
      nlohmann::json::parse(w.run("hetsched-simulate --pipeline pipeline.json --schedule h1f1b --json").output);
  for (const auto& source : sources) {
    const auto json = compared(w, source + " --measured h1f1b.json");
    for (const char* side : {"predicted", "measured"})
      for (const char* name : {"makespan_s", "bubble_ratio", "overlap_ratio"})
        CHECK(json.at(side).at(name).get<double>() == doctest::Approx(simulated.at(name).get<double>()).epsilon(1e-6));
    for (const char* name : {"makespan", "period", "bubble", "overlap"})
      CHECK(json.at("difference").at(name).get<double>() == doctest::Approx(0).epsilon(1e-6));
    CHECK(json.at("measured").at("ranks").size() == 3);
  }
}

TEST_CASE("another schedule than predicted shows, in the tables and on the page") {
  const workplace w;
  fill(w);
  const auto json = compared(w, "--predicted h1f1b.json --measured 1f1b.json");
  const double predicted = json.at("predicted").at("makespan_s"), measured = json.at("measured").at("makespan_s");
  CHECK(measured > 1.2 * predicted);
  CHECK(json.at("difference").at("makespan").get<double>() == doctest::Approx(measured / predicted - 1));
  CHECK(json.at("measured").at("overlap_ratio") < json.at("predicted").at("overlap_ratio"));
  double due_s = 0;
  for (const auto& part : json.at("due_to")) due_s += part.get<double>();
  CHECK(due_s == doctest::Approx(measured - predicted));
  CHECK(json.at("due_to").at("wait_s").get<double>() == doctest::Approx(measured - predicted));  // the order is all that differs

  const auto result = w.run("hetsched-compare-timeline --predicted h1f1b.json --measured 1f1b.json --report page.html");
  CHECK(result.status == 0);
  for (const char* part : {"iteration  predicted", "makespan", "stage", "overlap", "wrote page.html"})
    CHECK(result.output.find(part) != std::string::npos);
  const auto page = w.get("page.html");
  for (const char* part : {"Predicted", "Measured", "h1f1b.json", "1f1b.json", "<svg", "Predicted against measured"})
    CHECK(page.find(part) != std::string::npos);
  CHECK(page.find("<svg") != page.rfind("<svg"));
  const auto several = w.run("hetsched-compare-timeline --predicted zb_v.json --measured zb_v.json");
  CHECK(several.output.find("\nrank ") != std::string::npos);
}

TEST_CASE("a plan is its own prediction, under its warm-ups or another schedule") {
  const workplace w;
  fill(w);
  const char* const warmups[] = {"6", "3", "1"};
  const char* const transfers[] = {"0.02", "0.02", "0"};
  std::string stages;
  for (std::size_t i = 0; i < 3; ++i) {
    const auto number = std::to_string(i);
    stages += std::string(i == 0 ? "" : ",") + R"({"layers": [)" + number + ", " + number +
              R"(], "subcluster": "a", "nodes": 1, "devices_per_node": 1, "degrees": {"data": 1, "context": 1, "tensor": 1},
                 "forward_s": 0.01, "backward_s": 0.02, "memory_bytes": 1, "memory_capacity_bytes": 9, "first_device": )" +
              number + R"(, "warmup": )" + warmups[i] + R"(, "transfer_s": )" + transfers[i] + "}";
  }
  w.put("plan.json", R"({"format": "hetsched/plan", "version": 1, "planner": "interop_dp", "microbatches": 12, "pipelines": [
    {"microbatches": 12, "microbatch_size": 1, "stages": [)" +
                         stages + R"(]}], "schedule": "h1f1b", "predicted": {"iteration_s": 0,
    "lower_bound_s": 0, "samples_per_s": 0, "mfu": 0, "load_balance": 0, "period_s": 0}})");
  const auto simulate = w.run("hetsched-simulate --plan plan.json --trace own.json");
  INFO(simulate.errors);
  REQUIRE(simulate.status == 0);
  CHECK(compared(w, "--plan plan.json --measured own.json").at("difference").at("makespan").get<double>() ==
        doctest::Approx(0).epsilon(1e-6));
  CHECK(compared(w, "--plan plan.json --schedule gpipe --measured own.json").at("difference").at("makespan") != 0);
}

TEST_CASE("bad input to hetsched-compare-timeline: status 2, one line that names the cause, no file touched") {
  const workplace w;
  fill(w);
  w.put("short.json", R"({"format": "hetsched/pipeline", "version": 1, "microbatches": 4, "forward_s": [1, 1],
    "backward_s": [1, 1], "transfer_s": [0]})");
  struct row {
    std::string line;
    const char* part;
  };
  const row rows[] = {
      {"--predicted h1f1b.json", "--measured is required"},
      {"--measured h1f1b.json", "give one of --predicted, --pipeline and --plan"},
      {"--measured h1f1b.json --predicted h1f1b.json --pipeline pipeline.json", "give one of"},
      {"--measured h1f1b.json --pipeline pipeline.json", "--schedule is required with --pipeline"},
      {"--measured h1f1b.json --pipeline pipeline.json --schedule often", "there is no schedule \"often\""},
      {"--measured h1f1b.json --predicted h1f1b.json --schedule 1f1b", "--schedule belongs to"},
      {"--measured h1f1b.json --pipeline short.json --schedule 1f1b --report r.html", "predicted are 2 ranks and 4 microbatches"},
      {"--measured pipeline.json --predicted h1f1b.json --report r.html", "pipeline.json: /traceEvents: missing"},
      {"--measured none.json --predicted h1f1b.json", "none.json: cannot be opened"},
      {"--measured h1f1b.json --predicted h1f1b.json --report nowhere/r.html", "nowhere"},
  };
  const auto before = w.files();
  for (const auto& r : rows) {
    CAPTURE(r.line);
    const auto result = w.run("hetsched-compare-timeline " + r.line);
    CAPTURE(result.errors);
    CHECK(result.status == 2);
    CHECK(result.output.empty());
    CHECK(result.errors.find(r.part) != std::string::npos);
    CHECK(result.errors.find('\n') == result.errors.size() - 1);
  }
  CHECK(w.files() == before);
}
