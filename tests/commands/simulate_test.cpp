// SPDX-License-Identifier: Apache-2.0
// hetsched-simulate and schedule-gallery as a user calls them.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/io.hpp>
#include <hetsched/schedule.hpp>

#include "workplace.hpp"

using namespace hetsched;
using test::workplace;

namespace {

const std::string pipeline_text = R"({"format": "hetsched/pipeline", "version": 1, "microbatches": 64,
  "forward_s": [1, 1, 1, 1], "backward_s": [2, 2, 2, 2], "transfer_s": [0, 1.5, 0]})";
const std::string unequal_text = R"({"format": "hetsched/pipeline", "version": 1, "microbatches": 12,
  "forward_s": [1, 1.4, 1.2, 0.8], "backward_s": [2, 2.6, 2.4, 1.8], "transfer_s": [0.1, 1.2, 0.1],
  "gradient_transfer_s": [0.2, 1.3, 0.1], "weight_backward_s": [1, 1.3, 1.2, 0.9], "activation_bytes": [40, 30, 20, 10]})";
const std::string plan_text =
    R"({"format": "hetsched/plan", "version": 1, "planner": "interop_dp", "microbatches": 64, "pipelines": [
  {"microbatches": 64, "microbatch_size": 1, "stages": [
    {"layers": [0, 0], "subcluster": "v100", "first_device": 0, "nodes": 1, "devices_per_node": 1,
     "degrees": {"data": 1, "context": 1, "tensor": 1}, "warmup": 4, "forward_s": 1, "backward_s": 2, "transfer_s": 0.5,
     "memory_bytes": 10, "memory_capacity_bytes": 12},
    {"layers": [1, 1], "subcluster": "a100", "first_device": 0, "nodes": 1, "devices_per_node": 1,
     "degrees": {"data": 1, "context": 1, "tensor": 1}, "warmup": 2, "forward_s": 1, "backward_s": 2, "transfer_s": 0.01,
     "memory_bytes": 10, "memory_capacity_bytes": 12},
    {"layers": [2, 2], "subcluster": "a100", "first_device": 1, "nodes": 1, "devices_per_node": 1,
     "degrees": {"data": 1, "context": 1, "tensor": 1}, "warmup": 1, "forward_s": 1, "backward_s": 2, "transfer_s": 0,
     "memory_bytes": 10, "memory_capacity_bytes": 12}]}],
  "schedule": "h1f1b",
  "predicted": {"iteration_s": 1, "lower_bound_s": 1, "samples_per_s": 1, "mfu": 0, "load_balance": 1, "period_s": 1}})";
const std::set<std::string> documented{"makespan_s",    "period_s", "lower_bound_s", "bubble_ratio",
                                       "overlap_ratio", "warmup",   "peak_in_flight"};

void fill(const workplace& w) {
  w.put("pipeline.json", pipeline_text);
  w.put("unequal.json", unequal_text);
  w.put("plan.json", plan_text);
}

std::vector<std::string> names_and_auto() {
  std::vector<std::string> names{"auto"};
  for (const auto name : schedule_names()) names.emplace_back(name);
  return names;
}

nlohmann::json played(const workplace& w, const std::string& options) {
  const auto result = w.run("hetsched-simulate --json " + options);
  CAPTURE(options);
  CAPTURE(result.errors);
  REQUIRE(result.status == 0);
  return nlohmann::json::parse(result.output);
}

std::vector<int> counts(const nlohmann::json& numbers) { return numbers.get<std::vector<int>>(); }

}  // namespace

TEST_CASE("hetsched-simulate --json has exactly the documented keys, and no makespan is below its bound") {
  const workplace w;
  fill(w);
  for (const auto& name : names_and_auto())
    for (const std::string file : {"pipeline.json", "unequal.json"}) {
      CAPTURE(name);
      CAPTURE(file);
      const auto result = w.run("hetsched-simulate --json --pipeline " + file + " --schedule " + name);
      CAPTURE(result.errors);
      REQUIRE(result.status == 0);
      const auto json = nlohmann::json::parse(result.output);
      std::set<std::string> keys;
      for (const auto& [key, ignored] : json.items()) keys.insert(key);
      auto expected = documented;
      if (file == "unequal.json") expected.insert("peak_memory_bytes");
      CHECK(keys == expected);
      CHECK(json.at("makespan_s").get<double>() >= json.at("lower_bound_s").get<double>());
      CHECK(json.at("lower_bound_s").get<double>() >= 3 * (file == "pipeline.json" ? 64 : 12));
      CHECK(json.at("warmup").size() == 4);
      CHECK(json.at("peak_in_flight").size() == 4);

      const auto p = read_pipeline(w.path(file));
      if (name != "auto") {  // the library says the same
        const bool is_virtual = name == "virtual_1f1b";
        const auto order = build_schedule(name, p.times, p.microbatches,
                                          {.cross = is_virtual ? std::vector<bool>{false, true, false} : std::vector<bool>{}});
        const auto expected_run = simulate(p.times, order);
        CHECK(json.at("makespan_s").get<double>() == expected_run.makespan_s);
        CHECK(json.at("bubble_ratio").get<double>() == expected_run.bubble_ratio);
        CHECK(counts(json.at("peak_in_flight")) == expected_run.peak_in_flight);
        CHECK(counts(json.at("warmup")) == warmup_counts(order));
        const bool splits = name.starts_with("zb_") || name.starts_with("v_") || name.starts_with("dual");
        CHECK((result.errors.find("weight_backward_s") != std::string::npos) == (splits && file == "pipeline.json"));
      } else {
        const auto best = auto_schedule(p.times, p.microbatches);
        CHECK(json.at("makespan_s").get<double>() == doctest::Approx(best->makespan_s).epsilon(1e-12));
        CHECK(json.at("lower_bound_s").get<double>() >= best->lower_bound_s * (1 - 1e-12));
        CHECK(result.complaints().empty());
      }
    }
}

TEST_CASE("hetsched-simulate knows the 1F1B family's figures") {
  const workplace w;
  fill(w);
  // HARP Eq. 12: sum (t + 2c) + (M - 1) t_max
  const auto h1f1b = played(w, "--pipeline pipeline.json --schedule h1f1b");
  CHECK(h1f1b.at("makespan_s").get<double>() == doctest::Approx(12 + 2 * 1.5 + 63 * 3).epsilon(1e-12));
  CHECK(h1f1b.at("period_s").get<double>() == doctest::Approx(3).epsilon(1e-12));
  CHECK(counts(h1f1b.at("warmup")) == std::vector<int>{5, 4, 2, 1});
  const auto given = played(w, "--pipeline pipeline.json --schedule 1f1b --warmup 6,4,2,1");
  CHECK(counts(given.at("peak_in_flight")) == std::vector<int>{6, 4, 2, 1});
  const auto capped = played(w, "--pipeline pipeline.json --schedule eager_1f1b --memory-caps 3");
  CHECK(counts(capped.at("peak_in_flight")) == std::vector<int>{3, 3, 3, 1});
  const auto plan = played(w, "--plan plan.json");
  CHECK(counts(plan.at("warmup")) == std::vector<int>{4, 2, 1});
}

TEST_CASE("GPipe's period is the growth of its makespan") {
  const workplace w;
  const auto run = [&](const char* microbatches) {
    auto text = pipeline_text;
    text.replace(text.find("64"), 2, microbatches);
    w.put("p.json", text);
    return played(w, "--pipeline p.json --schedule gpipe");
  };
  const auto shorter = run("200");
  const auto longer = run("300");
  CHECK((longer.at("makespan_s").get<double>() - shorter.at("makespan_s").get<double>()) / 100 ==
        doctest::Approx(shorter.at("period_s").get<double>()));
}

TEST_CASE("a schedule that was written plays as it did before") {
  const workplace w;
  fill(w);
  for (const auto& name : names_and_auto())
    for (const std::string how : {"", " --rendezvous"}) {
      CAPTURE(name);
      CAPTURE(how);
      const auto first = played(w, "--pipeline unequal.json --schedule-csv s.csv --schedule " + name + how);
      const auto again = played(w, "--pipeline unequal.json --schedule @s.csv" + how);
      for (const char* key : {"makespan_s", "bubble_ratio", "overlap_ratio", "warmup", "peak_in_flight", "peak_memory_bytes"})
        CHECK(first.at(key) == again.at(key));
      CHECK((w.get("s.csv").find("SEND_F") != std::string::npos) == !how.empty());
      CHECK(first.at("makespan_s").get<double>() >= first.at("lower_bound_s").get<double>());
    }
}

TEST_CASE("auto keeps to its memory and is no worse than what else fits") {
  const workplace w;
  fill(w);
  const auto best = played(w, "--pipeline unequal.json --schedule auto --memory-caps 4");
  CHECK(best.at("peak_memory_bytes").get<std::vector<double>>() <= std::vector<double>{160, 120, 80, 40});
  for (const int held : counts(best.at("peak_in_flight"))) CHECK(held <= 4);
  for (const char* other : {"1f1b", "exact_1f1b", "zb_h1"})
    CHECK(best.at("makespan_s").get<double>() <=
          played(w, "--pipeline unequal.json --memory-caps 4 --schedule " + std::string(other)).at("makespan_s"));
  const auto more = played(w, "--pipeline unequal.json --schedule auto --memory-caps 8,6,4,2");
  CHECK(counts(more.at("peak_in_flight")).front() <= 8);
  CHECK(counts(more.at("peak_in_flight")).back() <= 2);
  int fitting = 0;
  for (const auto name : schedule_names()) {
    const auto other = w.run("hetsched-simulate --json --pipeline unequal.json --memory-caps 4 --schedule " + std::string(name));
    if (other.status != 0) continue;
    ++fitting;
    CHECK(played(w, "--pipeline unequal.json --schedule auto --cut-stages --memory-caps 4").at("makespan_s").get<double>() <=
          nlohmann::json::parse(other.output).at("makespan_s").get<double>() * (1 + 1e-12));
  }
  CHECK(fitting >= 8);

  const auto refused = w.run("hetsched-simulate --pipeline unequal.json --schedule zb_h2 --memory-caps 4 --trace t.json");
  CHECK(refused.status == 1);
  CHECK(refused.errors == "hetsched-simulate: no schedule: zb_h2 on stage 0 holds 7 microbatches, its cap is 4\n");
  CHECK(w.files().count("t.json") == 0);
}

TEST_CASE("virtual_1f1b counts the boundaries between clusters") {
  const workplace w;
  fill(w);
  // Of a bare pipeline those that are slower than the tolerance, of a plan those between subclusters, or those that are named.
  CHECK(counts(played(w, "--pipeline pipeline.json --schedule virtual_1f1b").at("warmup")) == std::vector<int>{5, 4, 2, 1});
  CHECK(counts(played(w, "--pipeline pipeline.json --schedule virtual_1f1b --epsilon 0.6").at("warmup")) ==
        std::vector<int>{4, 3, 2, 1});
  CHECK(counts(played(w, "--pipeline pipeline.json --schedule virtual_1f1b --cross 0,2").at("warmup")) ==
        std::vector<int>{6, 4, 3, 1});
  CHECK(counts(played(w, "--plan plan.json --schedule virtual_1f1b").at("warmup")) == std::vector<int>{4, 2, 1});
  CHECK(counts(played(w, "--plan plan.json --schedule virtual_1f1b --cross 1").at("warmup")) == std::vector<int>{4, 3, 1});
}

TEST_CASE("what a plan was not made for may not fit, and that is said") {
  const workplace w;
  fill(w);
  CHECK(w.run("hetsched-simulate --plan plan.json").complaints().empty());
  CHECK(w.run("hetsched-simulate --plan plan.json --schedule 1f1b --warmup 4,2,1").complaints().empty());
  const auto more = w.run("hetsched-simulate --plan plan.json --schedule gpipe");
  CHECK(more.status == 0);
  CHECK(more.errors.find("stage 0 holds 64 microbatches, starts in the plan with 4") != std::string::npos);
  // 12 bytes, 6 of them for weights: room for 6 activations.
  auto text = plan_text;
  for (auto at = text.find("\"memory_bytes\""); at != std::string::npos; at = text.find("\"memory_bytes\"", at + 80))
    text.insert(at, "\"weight_bytes\": 6, \"activation_bytes\": 1, ");
  w.put("bytes.json", text);
  CHECK(w.run("hetsched-simulate --plan bytes.json --schedule 1f1b --warmup 6,4,1").complaints().empty());
  CHECK_FALSE(w.run("hetsched-simulate --plan bytes.json --schedule 1f1b --warmup 7,4,1").errors.empty());
  CHECK(counts(played(w, "--plan bytes.json --schedule auto").at("peak_in_flight")).front() <= 6);
}

TEST_CASE("chunks of interleaved schedules") {
  const workplace w;
  fill(w);
  const auto two = played(w, "--pipeline unequal.json --schedule interleaved_1f1b");
  CHECK(two == played(w, "--pipeline unequal.json --schedule interleaved_1f1b --chunks 2"));
  CHECK(counts(two.at("warmup")) == std::vector<int>{11, 9, 7, 5});
  const auto one = played(w, "--pipeline unequal.json --schedule interleaved_1f1b --chunks 1");
  CHECK(one.at("makespan_s") == played(w, "--pipeline unequal.json --schedule 1f1b").at("makespan_s"));
}

TEST_CASE("own schedules are checked before they are played") {
  const workplace w;
  w.put("two.json", R"({"format": "hetsched/pipeline", "version": 1, "microbatches": 2, "forward_s": [1, 1],
    "backward_s": [2, 2], "transfer_s": [0.5]})");
  const std::string rank_0 = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n";
  const std::string behind = ",1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n";
  w.put("right.csv", rank_0 + "1RECV_F0,1RECV_F1" + behind);
  w.put("early.csv", rank_0 + "1RECV_F1,1RECV_F0" + behind);
  w.put("lost.csv", "0F0,0F1,0B0,0B1\n1F0,1F1,1B0\n");
  const std::string play = "hetsched-simulate --pipeline two.json --json --schedule ";
  const auto right = w.run(play + "@right.csv --rendezvous");
  CHECK(right.status == 0);
  CHECK(right.complaints().empty());
  // A send that waits holds up its rank: forwards end at 1 and 2.5, rank 1 has both inputs at 3, and gradient 0 arrives at 7.5.
  CHECK(nlohmann::json::parse(right.output).at("makespan_s").get<double>() == doctest::Approx(12));
  CHECK(played(w, "--pipeline two.json --schedule @right.csv").at("makespan_s").get<double>() == doctest::Approx(11));

  const auto buffered = w.run(play + "@early.csv");
  CHECK(buffered.status == 0);
  CHECK(buffered.errors.find("early.csv: deadlock (rendezvous): rank 0 0SEND_F0 waits for rank 1 1RECV_F0") != std::string::npos);
  const auto rendezvous = w.run(play + "@early.csv --rendezvous");
  CHECK(rendezvous.status == 2);
  CHECK(rendezvous.output.empty());
  CHECK(rendezvous.errors.find("behind rank 1 1RECV_F1, which waits for rank 0 0SEND_F1") != std::string::npos);
  const auto lost = w.run(play + "@lost.csv");
  CHECK(lost.status == 2);
  CHECK(lost.errors == "hetsched-simulate: lost.csv: 1B1 is missing\n");
}

TEST_CASE("--explain tells what the makespan is made of") {
  const workplace w;
  fill(w);
  const auto json = played(w, "--pipeline unequal.json --schedule zb_h1 --explain --report r.html");
  const double makespan_s = json.at("makespan_s").get<double>();
  const auto& path = json.at("critical_path");
  CHECK(path.front().at("start_s").get<double>() == 0);
  CHECK(path.back().at("end_s").get<double>() == makespan_s);
  CHECK(path.front().at("action") == "0F0");
  CHECK(json.at("free_rank_s").size() == 4);
  CHECK(json.at("free_wire_s").size() == 6);
  for (const auto& [wire, free_s] : json.at("free_wire_s").items()) CHECK(free_s.get<double>() <= makespan_s);
  const auto page = w.get("r.html");
  for (const char* part : {"Critical path", "What if", "Memory over time", "critical path"})
    CHECK(page.find(part) != std::string::npos);
  const auto text = w.run("hetsched-simulate --pipeline unequal.json --schedule zb_h1 --explain").output;
  CHECK(text.find("computations of rank 1") != std::string::npos);
}

TEST_CASE("--jitter tells what noise on ranks and links makes of an iteration") {
  const workplace w;
  fill(w);
  const std::string line = "--pipeline unequal.json --schedule 1f1b ";
  const double plain_s = played(w, line).at("makespan_s");
  const auto none = played(w, line + "--jitter 0 --samples 3").at("jitter");
  for (const auto& [share, seconds] : none.at("quantiles_s").items()) CHECK(seconds == plain_s);
  const auto some = played(w, line + "--jitter 0.2 --samples 500 --jitter-svg j.svg").at("jitter");
  CHECK(some.at("samples") == 500);
  double before = 0;
  for (const auto& [share, seconds] : some.at("quantiles_s").items()) {
    CHECK(seconds > before);
    before = seconds;
  }
  // A makespan is the longest of many sums, so its mean is no less, but for three standard errors at the most.
  CHECK(some.at("mean_s") > plain_s * (1 - 3 * 0.2 / std::sqrt(500)));
  CHECK(some == played(w, line + "--jitter 0.2 --samples 500").at("jitter"));
  CHECK(some != played(w, line + "--jitter 0.2 --samples 500 --jitter-seed 2").at("jitter"));
  CHECK(w.get("j.svg").find("without noise") != std::string::npos);
  CHECK(w.run("hetsched-simulate " + line + "--samples 5").status == 2);
  CHECK(w.run("hetsched-simulate " + line + "--jitter -1").status == 2);
  CHECK(w.run("hetsched-simulate " + line + "--jitter 0.1").output.find("99 % within") != std::string::npos);
}

TEST_CASE("bad input to hetsched-simulate: status 2, one line that names the cause, no file touched") {
  const workplace w;
  fill(w);
  w.put("cluster.json", R"({"format": "hetsched/cluster", "version": 1, "subclusters": []})");
  w.put("old.json", "an older plan");
  w.put("two.csv", "0F0,0B0\n1F0,1B0\n");
  struct row {
    std::string line;
    const char* part;
  };
  const row rows[] = {
      {"", "--pipeline or --plan"},
      {"--pipeline pipeline.json", "--schedule"},
      {"--pipeline pipeline.json --plan plan.json --schedule h1f1b", "--pipeline or --plan"},
      {"--pipeline pipeline.json --schedule often", "--schedule: found often, expected one of auto, @FILE, forward, gpipe, 1f1b"},
      {"--pipeline pipeline.json --schedule 1f1b --warmup 1,2", "--warmup"},
      {"--pipeline pipeline.json --schedule zb_h1 --warmup 4,3,2,1", "--warmup: zb_h1 has no warm-up counts"},
      {"--pipeline pipeline.json --schedule auto --warmup 4,3,2,1", "--warmup: auto has no warm-up counts"},
      {"--pipeline pipeline.json --schedule 1f1b --warmup 1,2,1,1 --trace t.json", "deadlock"},
      {"--pipeline pipeline.json --schedule 1f1b --warmup 0,0,0,0 --trace t.json", "at least 1"},
      {"--pipeline pipeline.json --schedule 1f1b --chunks 2", "--chunks: 1f1b has no chunks"},
      {"--pipeline pipeline.json --schedule interleaved_1f1b --chunks 0", "--chunks"},
      {"--pipeline pipeline.json --schedule gpipe --cross 1", "--cross: gpipe has no boundaries"},
      {"--pipeline pipeline.json --schedule virtual_1f1b --cross 3", "--cross: found 3, expected numbers below 3"},
      {"--pipeline pipeline.json --schedule auto --memory-caps 4,4", "--memory-caps: found 2 counts, expected 4"},
      {"--pipeline pipeline.json --schedule auto --memory-caps 0", "--memory-caps: found 0, expected at least 1"},
      {"--pipeline pipeline.json --schedule @none.csv", "none.csv: cannot be opened"},
      {"--pipeline pipeline.json --schedule @plan.json", "plan.json: "},
      {"--pipeline pipeline.json --schedule @two.csv", "two.csv: a schedule of 2 ranks and 1 microbatches, expected 4 and 64"},
      {"--pipeline pipeline.json --schedule 1f1b --trace t.json --schedule-csv t.json", "two outputs"},
      {"--plan old.json --trace t.json", "old.json: "},
      {"--pipeline cluster.json --schedule 1f1b --json", "cluster.json: /format"},
  };
  const auto before = w.files();
  for (const auto& r : rows) {
    CAPTURE(r.line);
    const auto result = w.run("hetsched-simulate " + r.line);
    CAPTURE(result.errors);
    CHECK(result.status == 2);
    CHECK(result.output.empty());
    CHECK(result.errors.find(r.part) != std::string::npos);
    CHECK(result.errors.find('\n') == result.errors.size() - 1);
  }
  CHECK(w.files() == before);
}

TEST_CASE("the pictures and the table of docs/schedules.md are what schedule-gallery makes") {
  const workplace w;
  const auto result = w.run("schedule-gallery .");
  REQUIRE(result.status == 0);
  const std::string docs = HETSCHED_SOURCE_DIR "/docs/";
  const auto page = read_text(docs + "schedules.md");
  CHECK(page.find(result.output) != std::string::npos);
  std::set<std::string> shipped;
  for (const auto& entry : std::filesystem::directory_iterator(docs + "schedules"))
    shipped.insert(entry.path().filename().string());
  CHECK(w.files() == shipped);
  CHECK(shipped.size() == schedule_names().size() + 2);
  for (const auto& name : w.files()) {
    CAPTURE(name);
    CHECK(w.get(name) == read_text(docs + "schedules/" + name));
    CHECK(page.find("](schedules/" + name + ")") != std::string::npos);
  }
}
