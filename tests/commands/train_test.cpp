// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/io/json/plan_json.hpp>
#include <hetsched/io/json_reader.hpp>

#include "../sanitizer_share.hpp"
#include "processes.hpp"
#include "workplace.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

const int steps = test::sanitizer_share == 1 ? 50 : 6;

/// Four layers, so up to four stages.
const std::string small = "hetsched-train --layers 2 --hidden 32 --heads 4 --sequence 32 --microbatches 4 ";
const std::string fifty = small + "--steps " + std::to_string(steps) + " ";

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// The rows of a losses file from a step on.
std::string rows_from(const std::string& csv, int step) {
  const auto at = csv.find('\n' + std::to_string(step) + ',');
  return at == std::string::npos ? "no step " + std::to_string(step) : csv.substr(at + 1);
}

double last_loss(const std::string& csv) {
  const auto comma = csv.rfind(',');
  return comma == std::string::npos ? 1e9 : std::stod(csv.substr(comma + 1));
}

bool without_gloo(const workplace& w) {
  const bool missing = contains(w.run(small + "--transport gloo --steps 0").errors, "built without Gloo");
  if (missing) MESSAGE("skipped: hetsched-train is built without Gloo");
  return missing;
}

void run_all(const workplace& w, int ranks, const std::string& run, const std::string& line) {
  auto all = start_ranks(w, ranks, run, [&](int) { return line; });
  for (auto& p : all) {
    const auto r = p.wait();
    CAPTURE(r.errors);
    CHECK(r.status == 0);
  }
}

pipeline_plan line_of(const std::vector<std::pair<int, int>>& stages, int microbatches, int microbatch_size,
                      std::vector<int> devices = {}) {
  pipeline_plan line{.microbatches = microbatches, .microbatch_size = microbatch_size, .schedule = {.name = "1f1b"}};
  for (const auto& [first, last] : stages) {
    const auto i = line.stages.size();
    stage_plan s{.layers = {first, last + 1}, .devices = {{{}, devices.empty() ? static_cast<int>(i) : devices[i]}}, .warmup = 1};
    s.cost.forward_s = s.cost.backward_s = 1e-3;
    line.stages.push_back(s);
    if (i > 0) line.boundaries.push_back({});
  }
  return line;
}

std::string plan_of(const std::vector<std::pair<int, int>>& stages) {
  return to_json(plan{.planner = "by hand", .pipelines = {line_of(stages, 4, 1)}}, {"local"});
}

}  // namespace

TEST_CASE("training lowers the loss, by the same bits on any number of stages and under any schedule") {
  const workplace w;
  for (const char* const precision : {"fp32", "fp64"}) {
    std::string reference;
    for (int ranks = 1; ranks <= 4; ++ranks) {
      CAPTURE(precision);
      CAPTURE(ranks);
      const auto r =
          w.run(fifty + "--lr 0.01 --losses losses.csv --json --precision " + precision + " --ranks " + std::to_string(ranks));
      CAPTURE(r.errors);
      REQUIRE(r.status == 0);
      const auto json = nlohmann::json::parse(r.output);
      CHECK(json.at("ranks").get<int>() == ranks);
      CHECK(json.at("pipelines").at(0).at("stages").size() == static_cast<std::size_t>(ranks));
      const auto losses = w.get("losses.csv");
      if (reference.empty()) reference = losses;
      CHECK(losses == reference);
    }
    if (steps == 50) CHECK(last_loss(reference) < 3.1);
    CHECK(last_loss(reference) < 5.6);  // log(256) = 5.55: a guess
    for (const char* const name : {"gpipe", "zb_h1", "interleaved_1f1b", "auto"}) {
      CAPTURE(name);
      REQUIRE(w.run(fifty + "--lr 0.01 --losses losses.csv --ranks 2 --precision " + precision + " --schedule " + name).status ==
              0);
      CHECK(w.get("losses.csv") == reference);
    }
  }
}

TEST_CASE("training writes a plan that it runs again, a trace, a report") {
  const workplace w;
  const auto first =
      w.run(small + "--steps 2 --ranks 3 --out-plan plan.json --losses one.csv --trace trace.json --report report.html");
  CAPTURE(first.errors);
  REQUIRE(first.status == 0);
  CHECK(contains(first.output, "2 steps from 0"));
  const auto file = parse_plan(w.get("plan.json"), "plan.json");
  CHECK(file.plan.pipelines.at(0).stages.size() == 3);
  CHECK(nlohmann::json::parse(w.get("trace.json")).at("traceEvents").size() > 3 * 4 * 2);
  CHECK(contains(w.get("report.html"), "Measured training step"));
  // Without --ranks: as many as the plan has.
  const auto again = w.run(small + "--steps 3 --plan plan.json --losses two.csv --json --times times.csv --trace-steps 2");
  CAPTURE(again.errors);
  REQUIRE(again.status == 0);
  CHECK(w.get("times.csv").starts_with("pipeline,stage,direction,action,count,median_s,spread_s\n0,0,0,F,8,"));
  CHECK(contains(w.get("times.csv"), "\n0,2,0,B,8,"));
  CHECK(nlohmann::json::parse(again.output).at("ranks").get<int>() == 3);
  CHECK(w.get("two.csv").starts_with(w.get("one.csv")));
  // Under another schedule than the plan's, what is written is what was run.
  REQUIRE(w.run(small + "--steps 1 --plan plan.json --schedule gpipe --out-plan other.json").status == 0);
  const auto other = parse_plan(w.get("other.json"), "other.json").plan;
  CHECK(other.pipelines.at(0).schedule.name == "gpipe");
  for (const auto& s : other.pipelines.at(0).stages) CHECK(s.warmup == 4);
  CHECK(contains(w.get("report.html"), "Stages as planned"));
}

TEST_CASE("a training that goes on from a checkpoint, on other ranks, has the losses of one that was never stopped") {
  const workplace w;
  for (const std::string how : {"--optimizer adamw", "--optimizer sgd --momentum 0.9 --lr 0.05 --checkpoint-behind"}) {
    CAPTURE(how);
    const std::string run = small + how + " ";
    REQUIRE(w.run(run + "--steps 9 --ranks 1 --losses whole.csv").status == 0);
    REQUIRE(w.run(run + "--steps 4 --ranks 2 --checkpoint state --every 2 --keep 2").status == 0);
    CHECK(fs::exists(w.path("state/step-000002")));
    const auto more = w.run(run + "--steps 7 --ranks 4 --checkpoint state --every 3 --keep 2 --resume --losses more.csv");
    CAPTURE(more.errors);
    REQUIRE(more.status == 0);
    CHECK(w.get("more.csv").starts_with("step,loss\n4,"));
    CHECK(rows_from(w.get("whole.csv"), 4).starts_with(rows_from(w.get("more.csv"), 4)));
    CHECK(!fs::exists(w.path("state/step-000002")));
    CHECK(fs::exists(w.path("state/step-000006/manifest.json")));
    // The newest is damaged: the one before it is taken, and why is told.
    {
      std::fstream part(w.path("state/step-000007/part-1.bin"), std::ios::in | std::ios::out | std::ios::binary);
      part.seekp(100);
      part.put('\x7f');
    }
    const auto rest = w.run(run + "--steps 9 --ranks 3 --checkpoint state --resume --losses rest.csv");
    CAPTURE(rest.errors);
    REQUIRE(rest.status == 0);
    CHECK(contains(rest.errors, "skips a damaged checkpoint"));
    CHECK(contains(rest.errors, "part-1.bin"));
    CHECK(rows_from(w.get("rest.csv"), 6) == rows_from(w.get("whole.csv"), 6));
    fs::remove_all(w.path("state"));
  }
}

TEST_CASE("the learning rate follows its decay") {
  const workplace w;
  const auto losses = [&](const std::string& options) {
    const auto run = w.run(small + "--steps 8 --lr 0.01 --losses losses.csv " + options);
    CAPTURE(run.errors);
    CHECK(run.status == 0);
    return w.get("losses.csv");
  };
  const auto constant = losses("--ranks 2");
  CHECK(losses("--lr-decay linear --lr-floor 1") == constant);
  const auto cosine = losses("--lr-decay cosine --lr-warmup 3 --ranks 3");
  CHECK(cosine == losses("--lr-decay cosine --lr-warmup 3"));
  CHECK(cosine != constant);
  CHECK(rows_from(cosine, 1) != rows_from(constant, 1));
  CHECK(w.run(small + "--lr-decay exponential").status == 2);
}

TEST_CASE("the order of work is solved again for what stages take, and losses stay") {
  const workplace w;
  REQUIRE(w.run(small + "--steps 8 --ranks 1 --losses one.csv").status == 0);
  // Whatever order is found is taken.
  const auto always = w.run(small + "--steps 8 --ranks 3 --schedule gpipe --replan-every 2 --replan-gain -1 --losses always.csv");
  CAPTURE(always.errors);
  CHECK(always.status == 0);
  for (const int step : {2, 4, 6})
    CHECK(contains(always.errors, "step " + std::to_string(step) + ": works in another order, for "));
  CHECK(w.get("always.csv") == w.get("one.csv"));
  const auto never = w.run(small + "--steps 8 --ranks 3 --replan-every 2 --replan-gain 1 --losses never.csv");
  CHECK(!contains(never.errors, "works in another order"));
  CHECK(w.get("never.csv") == w.get("one.csv"));
  const auto bad = w.run(small + "--steps 2 --ranks 2 --schedule interleaved_1f1b --replan-every 1");
  CHECK(bad.status == 2);
  CHECK(contains(bad.errors, "--replan-every needs schedules of one direction"));
}

TEST_CASE("layers move to where a plan for the measured times has them, on threads and over Gloo, and losses stay") {
  const workplace w;
  const std::string deep = "hetsched-train --layers 6 --hidden 32 --heads 4 --sequence 32 --microbatches 4 ",
                    many = deep + "--steps 20 ";
  REQUIRE(w.run(many + "--ranks 1 --losses one.csv").status == 0);
  // All blocks are the first rank's.
  w.put("plan.json", plan_of({{0, 6}, {7, 7}}));
  const auto moving = many + "--plan plan.json --replan-every 2 --replan-layers --losses moved.csv --out-plan moved.json ";
  const auto check = [&](const finished& r) {
    CAPTURE(r.errors);
    CHECK(r.status == 0);
    CHECK(contains(r.errors, ": layers move, for "));
    // The first move is away from the first rank; on a busy machine a later one may go back.
    const std::string measured = ", as layers and links are measured: layers 0-";
    const auto first = r.errors.find(measured);
    REQUIRE(first != std::string::npos);
    CHECK(r.errors.at(first + measured.size()) < '6');
    CHECK(w.get("moved.csv") == w.get("one.csv"));
    const auto moved = parse_plan(w.get("moved.json"), "moved.json").plan;
    REQUIRE(moved.pipelines.at(0).stages.size() == 2);
    CHECK(moved.pipelines[0].stages[1].layers == layer_range{moved.pipelines[0].stages[0].layers.last, 8});
    CHECK(moved.predicted.iteration_s > 0);
    // What is written is a plan that runs.
    CHECK(w.run(many + "--plan moved.json --losses again.csv").status == 0);
    CHECK(w.get("again.csv") == w.get("one.csv"));
  };
  check(w.run(moving + "--checkpoint state --every 10"));
  const auto more = w.run(deep + "--steps 22 --ranks 3 --checkpoint state --resume --losses more.csv");
  CAPTURE(more.errors);
  CHECK(more.status == 0);
  REQUIRE(w.run(deep + "--steps 22 --ranks 1 --losses whole.csv").status == 0);
  CHECK(rows_from(w.get("more.csv"), 20) == rows_from(w.get("whole.csv"), 20));
  const auto bad = w.run(many + "--replan-layers");
  CHECK(bad.status == 2);
  CHECK(contains(bad.errors, "--replan-layers needs --replan-every"));
  CHECK(contains(w.run(many + "--sums-in-order").errors, "--sums-in-order needs --nccl: else gradients are added in order"));
  CHECK(contains(w.run(many + "--cuda-ipc").errors, "--cuda-ipc is for processes: it needs --transport gloo"));
  if (without_gloo(w)) return;
  for (const auto* file : {"moved.csv", "moved.json"}) fs::remove(w.path(file));
  auto all = start_ranks(w, 2, "moved", [&](int) { return moving; });
  check(all[0].wait(60));
  CHECK(all[1].wait(60).status == 0);
}

TEST_CASE("batches that are accumulated are one step") {
  const workplace w;
  const auto losses = [&](const std::string& options) {
    const auto r =
        w.run("hetsched-train --layers 2 --hidden 32 --heads 4 --sequence 32 --steps 3 --losses losses.csv " + options);
    CAPTURE(r.errors);
    REQUIRE(r.status == 0);
    return w.get("losses.csv");
  };
  const auto whole = losses("--ranks 2 --microbatches 6"), parts = losses("--ranks 2 --microbatches 2 --accumulate 3");
  CHECK(losses("--ranks 3 --microbatches 2 --accumulate 3 --schedule gpipe") == parts);
  CHECK(losses("--ranks 2 --microbatches 2") != parts);
  std::istringstream a(whole), b(parts);
  int compared = 0;
  for (std::string x, y; std::getline(a, x) && std::getline(b, y); ++compared)
    if (compared > 0) CHECK(std::stod(x.substr(x.find(',') + 1)) == doctest::Approx(std::stod(y.substr(y.find(',') + 1))));
  CHECK(compared == 4);
  CHECK(w.run(small + "--accumulate 0").status == 2);
}

TEST_CASE("a validation does not change the training, and has the same loss however that is cut") {
  const workplace w;
  const std::string sources = HETSCHED_SOURCE_DIR;
  const std::string line = small + "--steps 4 --losses losses.csv --json";
  REQUIRE(w.run(line).status == 0);
  const auto losses = w.get("losses.csv");
  nlohmann::json first;
  for (const char* const cut :
       {"--ranks 1", "--ranks 3", "--ranks 2 --schedule interleaved_1f1b", "--ranks 4 --schedule chimera"}) {
    CAPTURE(cut);
    const auto r = w.run(line + " --validation " + sources + "/README.md --validate-every 3 --validation-batches 2 " + cut);
    CAPTURE(r.errors);
    REQUIRE(r.status == 0);
    if (std::string(cut).find("chimera") == std::string::npos) CHECK(w.get("losses.csv") == losses);
    const auto found = nlohmann::json::parse(r.output).at("validation");
    REQUIRE(found.size() == 2);
    CHECK(found[0].at("step") == 3);
    CHECK(found[1].at("step") == 4);
    CHECK(found[1].at("loss").get<double>() < found[0].at("loss").get<double>());
    if (first.is_null()) first = found;
    for (const std::size_t i : {0, 1})
      CHECK(found[i].at("loss").get<double>() == doctest::Approx(first[i].at("loss").get<double>()).epsilon(1e-5));
  }
  // An evaluation of the first step's samples, with the weights as they were.
  const auto same = w.run(small + "--steps 1 --lr 0 --losses losses.csv --json --validation-batches 1 --validation " + sources +
                          "/examples/gpt/alice.txt");
  REQUIRE(same.status == 0);
  const auto told = nlohmann::json::parse(same.output);
  CHECK(told.at("validation").at(0).at("loss") == told.at("first_loss"));
}

TEST_CASE("the log has a line per step, of a training that goes on, too; metrics are those of the last") {
  const workplace w;
  const std::string files = " --ranks 2 --checkpoint state --losses losses.csv --log log.jsonl --metrics metrics.prom";
  REQUIRE(w.run(small + "--steps 3 --schedule interleaved_1f1b" + files).status == 0);
  REQUIRE(w.run(small + "--steps 5 --resume --schedule interleaved_1f1b" + files).status == 0);
  std::istringstream lines(w.get("log.jsonl")), metrics(w.get("metrics.prom"));
  nlohmann::json last;
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    CAPTURE(line);
    last = nlohmann::json::parse(line);
    CHECK(last.at("step") == count);
    CHECK(last.at("updated") == true);
    CHECK(last.at("seconds").get<double>() > 0);
    REQUIRE(last.at("ranks").size() == 2);
    for (std::size_t r = 0; r < 2; ++r) {
      const auto& rank = last.at("ranks").at(r);
      REQUIRE(rank.at("stages").size() == 2);
      double computing_s = 0;
      for (std::size_t s = 0; s < 2; ++s) {
        const auto& stage = rank.at("stages").at(s);
        CHECK(stage.at("stage") == 2 * s + r);
        computing_s += stage.at("forward_s").get<double>() + stage.at("backward_s").get<double>();
      }
      CHECK(rank.at("computing_s").get<double>() == doctest::Approx(computing_s));
      CHECK(rank.at("span_s").get<double>() > 0.999 * computing_s);
      CHECK(last.at("seconds").get<double>() > 0.999 * rank.at("span_s").get<double>());
      CHECK(rank.at("held_bytes").get<double>() > 0);
      CHECK(!rank.contains("sent_bytes"));  // threads swap tensors
    }
  }
  CHECK(count == 5);
  CHECK(last.at("level") == "info");
  CHECK(contains(w.get("losses.csv"), "4," + last.at("loss").dump()));
  // Every sample has its metric's type before it.
  std::string type;
  int samples = 0;
  std::map<std::string, double> values;
  for (std::string line; std::getline(metrics, line);) {
    CAPTURE(line);
    if (line.starts_with("# HELP ")) continue;
    if (line.starts_with("# TYPE ")) {
      const auto end = line.find(' ', 7);
      type = line.substr(7, end - 7);
      const auto kind = line.substr(end + 1);
      CHECK((kind == "counter" || kind == "gauge"));
      continue;
    }
    ++samples;
    CHECK(line.starts_with(type));
    const auto space = line.rfind(' ');
    values[line.substr(0, space)] = std::stod(line.substr(space + 1));
  }
  CHECK(samples == 7 + 2 + 2 + 8);
  CHECK(values.at("hetsched_steps_total") == 5);
  CHECK(values.at("hetsched_loss") == last.at("loss").get<double>());
  CHECK(values.at("hetsched_stage_seconds{rank=\"1\",stage=\"3\",direction=\"0\",pass=\"backward\"}") ==
        last.at("ranks").at(1).at("stages").at(1).at("backward_s").get<double>());
}

TEST_CASE("a plan for other ranks than there are is made anew when a training goes on") {
  const workplace w;
  w.put("plan.json", plan_of({{0, 0}, {1, 1}, {2, 3}}));
  REQUIRE(w.run(small + "--steps 5 --ranks 1 --losses whole.csv").status == 0);
  REQUIRE(w.run(small + "--steps 2 --plan plan.json --checkpoint state").status == 0);
  const auto fresh = w.run(small + "--steps 5 --plan plan.json --ranks 2");
  CHECK(fresh.status == 2);
  CHECK(contains(fresh.errors, "plan.json is for 3"));
  const auto more = w.run(small + "--steps 5 --plan plan.json --ranks 2 --checkpoint state --resume --losses more.csv");
  CAPTURE(more.errors);
  REQUIRE(more.status == 0);
  CHECK(contains(more.errors, "plans anew"));
  CHECK(rows_from(w.get("more.csv"), 2) == rows_from(w.get("whole.csv"), 2));
}

TEST_CASE("a plan of mixed pipelines that is made anew keeps the samples of a step") {
  const workplace w;
  w.put("plan.json", to_json(plan{.pipelines = {line_of({{0, 1}, {2, 3}}, 4, 1), line_of({{0, 3}}, 2, 2, {2})}}, {"local"}));
  const std::string mixed = "hetsched-train --layers 2 --hidden 32 --heads 4 --sequence 32 --plan plan.json --precision fp64 ";
  const auto whole = w.run(mixed + "--steps 5 --losses whole.csv");
  CAPTURE(whole.errors);
  REQUIRE(whole.status == 0);
  REQUIRE(w.run(mixed + "--steps 2 --checkpoint state").status == 0);
  const auto more = w.run(mixed + "--steps 5 --ranks 2 --checkpoint state --resume --losses more.csv --json");
  CAPTURE(more.errors);
  REQUIRE(more.status == 0);
  const auto pipelines = nlohmann::json::parse(more.output).at("pipelines");
  REQUIRE(pipelines.size() == 1);
  CHECK(pipelines[0].at("microbatches").get<int>() == 8);
  CHECK(pipelines[0].at("microbatch_size").get<int>() == 1);
  for (int step = 2; step < 5; ++step) {
    const auto loss = [&](const char* csv) {
      const auto rows = rows_from(w.get(csv), step);
      return std::stod(rows.substr(rows.find(',') + 1));
    };
    CHECK(std::abs(loss("more.csv") - loss("whole.csv")) < 1e-5);
  }
}

TEST_CASE("later checkpoints that are damaged do not cost the one just written") {
  const workplace w;
  REQUIRE(w.run(small + "--steps 6 --every 2 --keep 3 --checkpoint state").status == 0);
  {
    std::fstream part(w.path("state/step-000006/part-0.bin"), std::ios::in | std::ios::out | std::ios::binary);
    part.seekg(100);
    const int byte = part.get();
    part.seekp(100);
    part.put(static_cast<char>(byte ^ 1));
  }
  REQUIRE(w.run(small + "--steps 5 --every 1 --keep 1 --checkpoint state --resume").status == 0);
  CHECK(fs::exists(w.path("state/step-000005/manifest.json")));
  const auto more = w.run(small + "--steps 5 --checkpoint state --resume");
  CHECK(contains(more.output, "nothing to do: step 5"));
}

TEST_CASE("--resume fails where there is nothing to go on from, --resume-or-start begins") {
  const workplace w;
  const auto misspelt = w.run(small + "--steps 1 --checkpoint stat --resume");
  CHECK(misspelt.status == 2);
  CHECK(contains(misspelt.errors, "there is no whole checkpoint in stat to go on from; --resume-or-start"));
  CHECK(!fs::exists(w.path("stat")));
  const auto begins = w.run(small + "--steps 1 --checkpoint state --resume-or-start");
  CHECK(begins.status == 0);
  CHECK(contains(begins.errors, "there is no checkpoint in state: begins at step 0"));
  REQUIRE(fs::exists(w.path("state/step-000001/manifest.json")));
  const auto goes_on = w.run(small + "--steps 2 --checkpoint state --resume-or-start");
  CHECK(goes_on.status == 0);
  CHECK(fs::exists(w.path("state/step-000002/manifest.json")));
  for (const auto* step : {"1", "2"}) w.put("state/step-00000" + std::string(step) + "/manifest.json", "{");
  const auto damaged = w.run(small + "--ranks 2 --steps 3 --checkpoint state --resume");
  CHECK(damaged.status == 2);
  CHECK(contains(damaged.errors, "skips a damaged checkpoint: state/step-000001/manifest.json"));
  CHECK(contains(damaged.errors, "there is no whole checkpoint in state"));
}

TEST_CASE("a second training does not write into the checkpoints of one that runs") {
  const workplace w;
  process run(w, small + "--steps 1000000 --checkpoint state --every 1", "run");
  REQUIRE(appears(w.path("state/step-000002")));
  const auto second = w.run(small + "--steps 3 --checkpoint state --resume");
  CHECK(second.status == 2);
  CHECK(contains(second.errors, "state: another training writes its checkpoints there: process "));
  run.signal(SIGHUP);
  const auto ended = run.wait();
  CHECK(ended.status == 3);
  CHECK(contains(ended.errors, "stopped by signal 1 after step"));
  const auto more = w.run(small + "--steps 1 --checkpoint state --resume");
  CHECK(more.status == 0);
}

TEST_CASE("a checkpoint of another model is refused, one of other settings goes on with a remark") {
  const workplace w;
  REQUIRE(w.run(small + "--steps 1 --checkpoint state").status == 0);
  const auto refused = [&](const std::string& line, const std::string& part) {
    const auto r = w.run(line + " --checkpoint state --resume --steps 2");
    CAPTURE(r.errors);
    CHECK(r.status == 2);
    CHECK(contains(r.errors, part));
  };
  refused("hetsched-train --layers 3 --hidden 32 --heads 4 --sequence 32 --microbatches 4", "its model is \"2 blocks");
  refused(small + "--precision fp64", "its precision is \"fp32\", not \"fp64\"");
  refused(small + "--optimizer sgd", "its optimizer is \"adamw\", not \"sgd\"");
  const auto r = w.run(small + "--checkpoint state --resume --steps 2 --lr 0.001");
  CHECK(r.status == 0);
  CHECK(contains(r.errors, "resumes with learning rate 0.001, which was 0.003"));
}

TEST_CASE("bad input of hetsched-train: status 2, one line that names the cause, no file touched") {
  const workplace w;
  w.put("plan.json", plan_of({{0, 1}, {2, 3}}));
  w.put("short.json", plan_of({{0, 1}, {2, 2}}));
  w.put("layers.json",
        R"({"format": "hetsched/model", "version": 1, "layers": [{"name": "a", "forward_flops": 1, "weight_bytes": 1,
    "activation_bytes": 1, "boundary_bytes": 1}]})");
  w.put("experts.json", R"({"format": "hetsched/model", "version": 1, "transformer": {"layers": 2, "hidden": 32, "heads": 4,
    "vocab": 256, "sequence": 32, "experts": 4, "experts_per_token": 0}})");
  w.put("tiny.txt", "too short");
  REQUIRE(w.run(small + "--steps 1 --checkpoint state").status == 0);
  fs::create_directories(w.path("half/step-000002.replaced"));
  struct row {
    std::string line;
    const char* part;
  };
  const row rows[] = {
      {small + "--plan none.json", "none.json: cannot be opened"},
      {small + "--plan short.json", "short.json: /pipelines/0/stages: found 3 layers, expected 4"},
      {small + "--plan plan.json --ranks 3", "plan.json is for 2"},
      {"hetsched-train --layers 2 --plan plan.json --microbatches 5", "plan.json: /pipelines: found 4 microbatches"},
      {small + "--plan plan.json --microbatch-size 2", "plan.json: /pipelines/0/microbatch_size: found 1"},
      {small + "--plan plan.json --schedule sideways", "there is no schedule \"sideways\""},
      {small + "--model layers.json", "layers.json: /transformer: missing"},
      {small + "--model experts.json", "experts_per_token must be between 1 and experts"},
      {"hetsched-train --hidden 30 --heads 4", "hidden must be divisible by heads"},
      {small + "--text none.txt", "none.txt: cannot be opened"},
      {small + "--text tiny.txt", "9 bytes are too few"},
      {small + "--validation tiny.txt", "--validation: 9 bytes are too few"},
      {small + "--validate-every 2", "--validate-every needs --validation"},
      {small + "--log plan.json --plan plan.json", "plan.json"},
      {small + "--metrics none/m", "none/m: there is no folder none"},
      {small + "--checkpoint state", "state holds step-000001: --resume"},
      {small + "--checkpoint half", "half holds step-000002.replaced: --resume"},
      {small + "--checkpoint plan.json", "plan.json: cannot be made"},
      {small + "--checkpoint plan.json/state", "plan.json/state: cannot be made"},
      {small + "--seed -1", "--seed"},
      {small + "--resume", "--resume needs --checkpoint"},
      {small + "--losses none/losses.csv", "none/losses.csv: there is no folder none"},
      {small + "--losses a.csv --trace a.csv", "a.csv: named for two outputs"},
      {small + "--optimizer adam", "--optimizer"},
      {small + "--precision fp16", "--precision"},
      {small + "--lr nan", "--lr"},
      {small + "--steps -1", "--steps"},
      {small + "--ranks 0", "--ranks"},
      {small + "--transport pigeon", "--transport"},
  };
  const auto before = w.files();
  for (const auto& r : rows) {
    CAPTURE(r.line);
    const auto result = w.run(r.line);
    CAPTURE(result.errors);
    CHECK(result.status == 2);
    CHECK(result.output.empty());
    CHECK(contains(result.errors, r.part));
    CHECK(result.errors.find('\n') == result.errors.size() - 1);
  }
  CHECK(w.files() == before);
  const auto crowd = w.run(small + "--ranks 5");
  CHECK(crowd.status == 1);
  CHECK(contains(crowd.errors, "no plan for 5 ranks and 4 layers"));
}

TEST_CASE("a signal ends the training after a step, with a checkpoint that another run goes on from") {
  const workplace w;
  process run(w, small + "--steps 1000000 --ranks 2 --checkpoint state --every 1 --losses losses.csv", "run");
  REQUIRE(appears(w.path("state/step-000002")));
  run.signal(SIGINT);
  const auto ended = run.wait();
  CAPTURE(ended.errors);
  CHECK(ended.status == 3);
  CHECK(contains(ended.errors, "stopped by signal 2 after step"));
  for (const auto& e : fs::directory_iterator(w.path("state"))) CHECK(!contains(e.path().filename().string(), ".writing"));
  const auto csv = w.get("losses.csv");
  const int step = std::stoi(csv.substr(csv.rfind('\n', csv.size() - 2) + 1)) + 1;
  const auto more = w.run(small + "--ranks 1 --checkpoint state --resume --losses more.csv --steps " + std::to_string(step + 1));
  CHECK(more.status == 0);
  CHECK(w.get("more.csv").starts_with("step,loss\n" + std::to_string(step) + ","));
}

TEST_CASE("a signal to one process of a run ends them all alike") {
  const workplace w;
  if (without_gloo(w)) return;
  auto all = start_ranks(w, 2, "stopped", [&](int) { return small + "--steps 1000000 --checkpoint state --every 1"; });
  REQUIRE(appears(w.path("state/step-000002")));
  all[1].signal(SIGTERM);
  for (auto& p : all) {
    const auto r = p.wait();
    CAPTURE(r.errors);
    CHECK(r.status == 3);
  }
}

TEST_CASE("processes that Gloo connects train by the same bits as one") {
  const workplace w;
  if (without_gloo(w)) return;
  REQUIRE(w.run(fifty + "--ranks 1 --losses one.csv").status == 0);
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    run_all(w, ranks, "n" + std::to_string(ranks), fifty + "--losses many.csv --trace trace.json --log log.jsonl");
    // Of the first rank, per step: an activation of 32 x 32 floats for each of four microbatches, and gradients that others
    // share.
    std::istringstream log(w.get("log.jsonl"));
    for (std::string line; std::getline(log, line);)
      CHECK(nlohmann::json::parse(line).at("ranks").at(0).at("sent_bytes").get<double>() >= 4 * 32 * 32 * 4);
    fs::remove(w.path("log.jsonl"));
    CHECK(w.get("many.csv") == w.get("one.csv"));
    fs::remove(w.path("many.csv"));
  }
  CHECK(nlohmann::json::parse(w.get("trace.json")).at("traceEvents").size() > 4 * 4 * 2);
}

#ifdef HETSCHED_MPIEXEC
TEST_CASE("processes that MPI connects train by the same bits as one, also where there is no work for some, or one cannot come") {
  const workplace w;
  // Open MPI starts no more ranks than there are processors, and none for root, unless told so.
  const std::string settings =
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 " HETSCHED_MPIEXEC " ";
  REQUIRE(w.run(fifty + "--ranks 1 --losses one.csv").status == 0);
  REQUIRE(w.run(small + "--steps 1 --ranks 2 --out-plan two.json").status == 0);
  for (const std::string plan : {"", "--plan two.json "}) {
    const auto r = process(w, fifty + plan + "--transport mpi --losses many.csv", "over-mpi", settings + "3").wait();
    CAPTURE(r.errors);
    CHECK(r.status == 0);
    CHECK(w.get("many.csv") == w.get("one.csv"));
    CHECK(contains(r.errors, "rank 2: the plan has no work for it") == !plan.empty());
    fs::remove(w.path("many.csv"));
  }
  // A folder of which one rank, the first, finds that it holds another training.
  fs::create_directories(w.path("state/step-000001"));
  const auto late = process(w, fifty + "--transport mpi --checkpoint state", "late", settings + "2").wait();
  CAPTURE(late.errors);
  CHECK(late.status != 0);
  CHECK(contains(late.errors, "state holds step-000001: --resume"));
}
#endif

TEST_CASE("kill -9 of a rank: the others end with the reason within the deadline, and fewer ranks go on from the checkpoint") {
  std::string behind;
  SUBCASE("checkpoints between steps") {}
  SUBCASE("checkpoints behind the training") { behind = " --checkpoint-behind"; }
  CAPTURE(behind);
  const workplace w;
  if (without_gloo(w)) return;
  const auto run = small + "--steps 1000000 --checkpoint state --every 2 --keep 3 --deadline 20" + behind;
  auto all = start_ranks(w, 4, "killed", [&](int) { return run; });
  REQUIRE(appears(w.path("state/step-000004")));
  all[1].signal(SIGKILL);
  CHECK(all[1].wait().status == 128 + SIGKILL);
  for (const int r : {0, 2, 3}) {
    CAPTURE(r);
    const auto ended = all[static_cast<std::size_t>(r)].wait(60);
    CAPTURE(ended.errors);
    CHECK(ended.status == 3);
    CHECK(ended.output.empty());
    CHECK(contains(ended.errors, "hetsched-train: rank " + std::to_string(r)));
    CHECK(contains(ended.errors, "rank 1"));
  }
  // Three ranks go on; so does, from the same checkpoint, one that nothing happens to.
  fs::copy(w.path("state"), w.path("undisturbed"), fs::copy_options::recursive);
  int newest = 0;
  for (const auto& e : fs::directory_iterator(w.path("state")))
    if (const auto name = e.path().filename().string(); name.starts_with("step-") && name.find('.') == std::string::npos)
      newest = std::max(newest, std::stoi(name.substr(5)));
  REQUIRE(newest >= 4);
  const auto end = " --steps " + std::to_string(newest + 5);
  run_all(w, 3, "resumed", small + "--checkpoint state --resume --every 2 --losses resumed.csv" + end + behind);
  REQUIRE(w.run(small + "--checkpoint undisturbed --resume --losses undisturbed.csv" + end).status == 0);
  CHECK(w.get("resumed.csv").starts_with("step,loss\n" + std::to_string(newest) + ","));
  CHECK(w.get("resumed.csv") == w.get("undisturbed.csv"));
  const auto rows = w.get("resumed.csv");
  CHECK(std::count(rows.begin(), rows.end(), '\n') == 6);
}

TEST_CASE("a rank that comes with another plan: every rank is told") {
  const workplace w;
  if (without_gloo(w)) return;
  w.put("plan.json", plan_of({{0, 0}, {1, 1}, {2, 3}}));
  w.put("other.json", plan_of({{0, 0}, {1, 2}, {3, 3}}));
  auto all = start_ranks(w, 3, "plans", [&](int r) {
    return small + "--steps 5 --plan " + (r == 2 ? "other.json" : "plan.json") + " --checkpoint state";
  });
  for (auto& p : all) {
    const auto r = p.wait(60);
    CAPTURE(r.errors);
    CHECK(r.status == 2);
    CHECK(contains(r.errors, "rank 2 does not train what the others do"));
    CHECK(contains(r.errors, "stages"));
  }
  // The same for other settings.
  auto seeds =
      start_ranks(w, 3, "seeds", [&](int r) { return small + "--steps 5 --plan plan.json --seed " + (r == 0 ? "1" : "2"); });
  for (auto& p : seeds) {
    const auto r = p.wait(60);
    CAPTURE(r.errors);
    CHECK(r.status == 2);
    CHECK(contains(r.errors, "seed: 1 on rank 0, 2 on rank 1"));
  }
  CHECK(fs::is_empty(w.path("state")));
  // A plan for more ranks than there are.
  auto few = start_ranks(w, 2, "few", [&](int) { return small + "--steps 5 --plan plan.json"; });
  for (auto& p : few) {
    const auto r = p.wait(60);
    CAPTURE(r.errors);
    CHECK(r.status == 2);
    CHECK(contains(r.errors, "3 ranks"));
  }
}

TEST_CASE("stages run on the ranks that they were planned for") {
  const workplace w;
  if (without_gloo(w)) return;
  // Device 2 of four first, then device 0; ranks 1 and 3 have nothing to do.
  const auto on = [&](std::vector<int> devices) {
    w.put("plan.json",
          to_json(plan{.pipelines = {line_of({{0, 1}, {2, 3}}, 4, 1, std::move(devices))}}, {"here", "there"}, {3, 1}));
  };
  on({2, 0});
  auto all = start_ranks(w, 4, "placed", [&](int) { return small + "--steps 2 --plan plan.json --json"; });
  for (int r = 0; r < 4; ++r) {
    CAPTURE(r);
    const auto ended = all[static_cast<std::size_t>(r)].wait(60);
    CAPTURE(ended.errors);
    CHECK(ended.status == 0);
    CHECK(contains(ended.errors, "no work for it") == (r % 2 == 1));
    CHECK(ended.output.empty() == (r != 2));  // the first stage's rank speaks
  }
  // Three ranks for a plan of two stages, of which one is on the fourth device.
  auto far = plan{.pipelines = {line_of({{0, 1}, {2, 3}}, 4, 1)}};
  far.pipelines[0].stages[1].devices[0] = {{.subcluster = 1}, 0};
  w.put("plan.json", to_json(far, {"here", "there"}, {3, 1}));
  auto refused = start_ranks(w, 3, "elsewhere", [&](int) { return small + "--steps 1 --plan plan.json"; });
  for (auto& p : refused) {
    const auto r = p.wait(60);
    CAPTURE(r.errors);
    CHECK(r.status == 2);
    CHECK(contains(r.errors, "plan.json: it is for ranks that are not there, or uses one twice"));
  }
  auto anew =
      start_ranks(w, 3, "anew", [&](int) { return small + "--steps 1 --plan plan.json --resume-or-start --checkpoint state"; });
  for (auto& p : anew) {
    const auto r = p.wait(60);
    CAPTURE(r.errors);
    CHECK(r.status == 0);
  }
  CHECK(fs::exists(w.path("state/step-000001/part-1.bin")));
}

TEST_CASE("a plan with degrees runs on a rank per device, threads as processes") {
  const workplace w;
  auto line = line_of({{0, 1}, {2, 2}, {3, 3}}, 4, 2, {0, 4, 5});
  line.stages[0].degrees = {.data = 2, .tensor = 2};
  line.stages[0].devices[0].mesh = {.nodes = 1, .devices_per_node = 4};
  line.stages[2].degrees = {.tensor = 2};
  line.stages[2].devices[0].mesh = {.nodes = 1, .devices_per_node = 2};
  line.boundaries[0].reshard = "one_to_one";
  w.put("plan.json", to_json(plan{.planner = "by hand", .pipelines = {line}}, {"local"}, {7}));
  const std::string run = "hetsched-train --layers 2 --hidden 32 --heads 4 --sequence 32 --steps 4 --precision fp64 ";
  const auto r = w.run(run + "--plan plan.json --losses losses.csv --json --trace trace.json");
  CAPTURE(r.errors);
  REQUIRE(r.status == 0);
  const auto json = nlohmann::json::parse(r.output);
  CHECK(json.at("ranks").get<int>() == 7);
  CHECK(json.at("pipelines").at(0).at("degrees").at(0).at("tensor").get<int>() == 2);
  REQUIRE(w.run(run + "--microbatches 4 --microbatch-size 2 --losses alone.csv --ranks 1").status == 0);
  CHECK(last_loss(w.get("losses.csv")) == doctest::Approx(last_loss(w.get("alone.csv"))).epsilon(1e-9));
  const auto fewer = w.run(run + "--plan plan.json --ranks 3");
  CHECK(fewer.status == 2);
  CHECK(contains(fewer.errors, "plan.json is for 7"));
  if (without_gloo(w)) return;
  run_all(w, 7, "degrees", run + "--plan plan.json --losses gloo.csv");
  CHECK(w.get("gloo.csv") == w.get("losses.csv"));
}

TEST_CASE("two and three unlike pipelines: the bits of pipelines that are not cut, on threads and processes") {
  const workplace w;
  const std::string run = "hetsched-train --layers 2 --hidden 32 --heads 4 --sequence 32 --steps 3 --precision fp64 ";
  const auto train = [&](const std::string& name, std::vector<pipeline_plan> lines, int devices) {
    w.put(name + ".json", to_json(plan{.planner = "by hand", .pipelines = std::move(lines)}, {"local"}, {devices}));
    const auto r = w.run(run + "--plan " + name + ".json --losses " + name + ".csv");
    CAPTURE(r.errors);
    REQUIRE(r.status == 0);
    return w.get(name + ".csv");
  };
  const auto two = train("two", {line_of({{0, 1}, {2, 3}}, 3, 2, {0, 1}), line_of({{0, 0}, {1, 2}, {3, 3}}, 1, 2, {2, 3, 4})}, 5);
  CHECK(two == train("two_whole", {line_of({{0, 3}}, 3, 2, {0}), line_of({{0, 3}}, 1, 2, {1})}, 2));
  const auto three = train("three",
                           {line_of({{0, 2}, {3, 3}}, 2, 1, {0, 1}), line_of({{0, 0}, {1, 3}}, 3, 1, {2, 3}),
                            line_of({{0, 1}, {2, 2}, {3, 3}}, 1, 1, {4, 5, 6})},
                           7);
  CHECK(three ==
        train("three_whole", {line_of({{0, 3}}, 2, 1, {0}), line_of({{0, 3}}, 3, 1, {1}), line_of({{0, 3}}, 1, 1, {2})}, 3));
  if (without_gloo(w)) return;
  run_all(w, 5, "two", run + "--plan two.json --losses gloo.csv");
  CHECK(w.get("gloo.csv") == two);
}

TEST_CASE("hetsched-train says that it works alone, and refuses where it was to be one of several") {
  const workplace w;
  if (without_gloo(w)) return;
  const std::string line = small + "--steps 1 ", gloo = line + "--transport gloo --store file:meeting ";
  const auto run = [&](const std::string& command, const std::string& environment) {
    return process(w, command, "alone", "-u RANK -u WORLD_SIZE -u SLURM_NTASKS -u OMPI_COMM_WORLD_SIZE " + environment).wait();
  };
  const auto alone = run(gloo, "");
  CHECK(alone.status == 0);
  CHECK(contains(alone.errors,
                 "no launcher has told a rank: one process works alone (RANK and WORLD_SIZE, mpirun, srun, flux, torchrun"));
  const auto meant = run(gloo + "--ranks 1", "SLURM_NTASKS=2");
  CHECK(meant.status == 0);
  CHECK(meant.errors.find("alone") == std::string::npos);

  const auto shell = run(gloo, "SLURM_NTASKS=2");
  CHECK(shell.status == 2);
  CHECK(contains(
      shell.errors,
      "no launcher has told a rank, and SLURM_NTASKS is 2, this is the shell of an allocation of 2 tasks: start with srun"));
  const auto world_of_one = run(gloo, "RANK=0 WORLD_SIZE=1 OMPI_COMM_WORLD_SIZE=2");
  CHECK(world_of_one.status == 0);
  CHECK(contains(world_of_one.errors, "torchrun started one process, which works alone, but OMPI_COMM_WORLD_SIZE is 2"));

  const auto threads = run(line, "RANK=0 WORLD_SIZE=2");
  CHECK(threads.status == 0);
  CHECK(contains(threads.errors, "torchrun started 2 processes, and each works alone: with --transport gloo they work together"));
  CHECK(run(line, "").errors.find("alone") == std::string::npos);
}

TEST_CASE("hetsched-train --dry-run tries ranks, options and one batch, and leaves nothing behind") {
  const workplace w;
  const auto names = [&] {
    std::vector<std::string> all;
    for (const auto& f : fs::recursive_directory_iterator(w.path(""))) all.push_back(f.path().string());
    std::sort(all.begin(), all.end());
    return all;
  };
  const std::string run = small + "--steps 4 --checkpoint state --losses losses.csv --log log.jsonl --trace trace.json ";
  const auto before = names();
  const auto dry = w.run(run + "--ranks 2 --dry-run");
  CAPTURE(dry.errors);
  REQUIRE(dry.status == 0);
  CHECK(names() == before);
  CHECK(contains(dry.output, "dry run: 2 ranks met, forwards and backwards of one batch took "));
  CHECK(contains(dry.output, "nothing was updated, and no file written"));
  const auto json = w.run(run + "--ranks 2 --dry-run --json");
  REQUIRE(json.status == 0);
  const auto told = nlohmann::json::parse(json.output).at("dry_run");
  REQUIRE(told.size() == 2);
  for (const auto& rank : told) {
    CHECK(rank.at("computing_s").get<double>() > 0);
    CHECK(rank.at("span_s").get<double>() >= rank.at("computing_s").get<double>());
    CHECK(rank.at("held_bytes").get<double>() > 0);
  }
  // What the training itself would refuse.
  REQUIRE(w.run(run + "--ranks 2").status == 0);
  const auto again = w.run(run + "--ranks 2 --dry-run");
  CHECK(again.status == 2);
  CHECK(contains(again.errors, "--resume goes on from it"));
  const auto after = names();
  const std::string losses = w.get("losses.csv");
  CHECK(w.run(run + "--ranks 2 --dry-run --resume").status == 0);
  CHECK(names() == after);
  CHECK(w.get("losses.csv") == losses);

  if (without_gloo(w)) return;
  run_all(w, 2, "dry", small + "--steps 4 --dry-run --checkpoint other");
  CHECK(!fs::exists(w.path("other")));
}

TEST_CASE("hetsched-train takes its rank from flux and in the pods of an indexed job") {
  const workplace w;
  if (without_gloo(w)) return;
  REQUIRE(w.run(small + "--steps 2 --ranks 1 --losses whole.csv").status == 0);
  const std::string none = "-u RANK -u WORLD_SIZE -u LOCAL_RANK ";
  const auto pod = [](int r) {
    const auto index = std::to_string(r);
    return "WORLD_SIZE=2 JOB_COMPLETION_INDEX=" + index + " HOSTNAME=train-" + index;
  };
  const auto flux = [](int r) {
    const auto index = std::to_string(r);
    return "FLUX_JOB_SIZE=2 FLUX_JOB_ID=f2Bx FLUX_TASK_RANK=" + index + " FLUX_TASK_LOCAL_ID=" + index;
  };
  for (const std::string launcher : {"pod", "flux"}) {
    CAPTURE(launcher);
    const std::string line =
        small + "--steps 2 --transport gloo --store file:meeting-" + launcher + " --losses " + launcher + ".csv";
    std::vector<process> all;
    for (int r = 0; r < 2; ++r)
      all.emplace_back(w, line, launcher + std::to_string(r), none + (launcher == "pod" ? pod(r) : flux(r)));
    for (auto& p : all) {
      const auto r = p.wait();
      CAPTURE(r.errors);
      CHECK(r.status == 0);
    }
    CHECK(w.get(launcher + ".csv") == w.get("whole.csv"));
  }
}

TEST_CASE("a process whose rank is none of the run's is told of to those that wait") {
  const workplace w;
  if (without_gloo(w)) return;
  const std::string line = small + "--steps 1 --transport gloo --store file:meeting --connect-deadline 60";
  process first(w, line, "first", "RANK=0 WORLD_SIZE=3"), second(w, line, "second", "RANK=1 WORLD_SIZE=3"),
      third(w, line, "third", "RANK=7 WORLD_SIZE=3");
  for (auto* p : {&first, &second}) {
    const auto r = p->wait(30);
    CHECK(r.status == 3);
    CHECK(contains(r.errors, "rank 7 cannot come to the run without a name"));
    CHECK(contains(r.errors, "RANK is 7 with WORLD_SIZE 3"));
  }
  CHECK(third.wait(30).status == 2);
}

TEST_CASE("two processes of one rank end at once, and say which they are") {
  const workplace w;
  if (without_gloo(w)) return;
  const std::string line = small + "--steps 1 --transport gloo --store file:meeting --connect-deadline 60";
  process one(w, line, "one", "RANK=0 WORLD_SIZE=2"), other(w, line, "other", "RANK=0 WORLD_SIZE=2");
  for (auto* p : {&one, &other}) {
    const auto r = p->wait(30);
    CHECK(r.status == 2);
    CHECK(contains(r.errors,
                   "two processes say that they are rank 0 of 2 in the run without a name in the rendezvous file:meeting"));
  }
}
