// SPDX-License-Identifier: Apache-2.0
// hetsched-generate as a user calls it.
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/io/json/plan_json.hpp>

#include "processes.hpp"
#include "workplace.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

const std::string sizes = " --layers 2 --hidden 32 --heads 4 --sequence 32 ";

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Stages of single devices that begin with these layers.
std::string plan_of(const std::vector<int>& first, const std::vector<int>& devices, int layers = 4) {
  pipeline_plan line{.microbatches = 1, .microbatch_size = 1, .schedule = {.name = "gpipe"}};
  for (std::size_t s = 0; s < first.size(); ++s) {
    if (s > 0) line.boundaries.push_back({});
    line.stages.push_back(
        {.layers = {first[s], s + 1 < first.size() ? first[s + 1] : layers}, .devices = {{{.devices_per_node = 1}, devices[s]}}});
  }
  return to_json(plan{.pipelines = {line}}, {"local"}, {static_cast<int>(devices.size())});
}

nlohmann::json texts(const finished& run) {
  CAPTURE(run.errors);
  REQUIRE(run.status == 0);
  return nlohmann::json::parse(run.output).at("texts");
}

}  // namespace

TEST_CASE("hetsched-generate: every number of ranks and every plan makes the same text, from the weights of a checkpoint") {
  const workplace w;
  const auto trained = w.run("hetsched-train" + sizes + "--steps 30 --lr 0.01 --microbatches 4 --ranks 2 --checkpoint state");
  CAPTURE(trained.errors);
  REQUIRE(trained.status == 0);
  const std::string line = "hetsched-generate" + sizes + "--prompt 'Alice was' --prompt The --tokens 60 --json ";
  const auto expected = texts(w.run(line + "--checkpoint state"));
  REQUIRE(expected.size() == 2);
  const auto text = expected[0].get<std::string>();
  CHECK(text.starts_with("Alice was"));
  CHECK(text.size() == 69);
  // It has learned which bytes are likely: a text's, not any.
  CHECK(std::all_of(text.begin(), text.end(), [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); }));
  CHECK(texts(w.run(line)) != expected);
  w.put("three.json", plan_of({0, 1, 3}, {2, 0, 1}));
  for (const std::string ranks : {"--ranks 2", "--ranks 4", "--plan three.json", "--ranks 2 --in-flight 1"})
    CHECK(texts(w.run(line + "--checkpoint state " + ranks)) == expected);

  const auto printed =
      w.run("hetsched-generate" + sizes + "--checkpoint state --plan three.json --prompt 'Alice was' --tokens 60");
  CHECK(printed.status == 0);
  CHECK(printed.output.starts_with(text + "\n60 tokens, ranks: 3; the first after "));
  CHECK(printed.output.ends_with(" tokens/s\n"));
  const std::string warm = line + "--checkpoint state --temperature 0.8 --choice-seed ";
  CHECK(texts(w.run(warm + "3 --ranks 3")) == texts(w.run(warm + "3")));
  CHECK(texts(w.run(warm + "4")) != texts(w.run(warm + "3")));

  if (contains(w.run("hetsched-generate --prompt a --transport gloo").errors, "built without Gloo")) {
    MESSAGE("skipped: hetsched-generate is built without Gloo");
    return;
  }
  auto all = start_ranks(w, 3, "generates", [&](int) { return line + "--checkpoint state --plan three.json"; });
  for (int r = 0; r < 3; ++r) {
    CAPTURE(r);
    const auto ended = all[static_cast<std::size_t>(r)].wait();
    CAPTURE(ended.errors);
    CHECK(ended.status == 0);
    if (r == 2)  // the first stage is planned for device 2
      CHECK(nlohmann::json::parse(ended.output).at("texts") == expected);
    else
      CHECK(ended.output.empty());
  }
}

TEST_CASE("hetsched-generate: kill -9 of a rank ends the others with an error that names it") {
  const workplace w;
  const std::string line = "hetsched-generate" + sizes + "--prompt Alice --tokens 1000000 --deadline 20";
  if (contains(w.run("hetsched-generate --prompt a --transport gloo").errors, "built without Gloo")) {
    MESSAGE("skipped: hetsched-generate is built without Gloo");
    return;
  }
  auto all = start_ranks(w, 3, "killed", [&](int) { return line; });
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  all[1].signal(SIGKILL);
  for (const std::size_t r : {0U, 2U}) {
    const auto ended = all[r].wait(20);
    CAPTURE(ended.errors);
    CHECK(ended.status == 3);
    CHECK(contains(ended.errors, "rank 1 was lost"));
  }
}

TEST_CASE("bad input of hetsched-generate: status 2, one line that names the cause") {
  const workplace w;
  w.put("other.json", plan_of({0, 1}, {0, 1}));
  w.put("short.json", plan_of({0, 1}, {0, 1}, 3));
  auto wide = pipeline_plan{.microbatches = 1, .microbatch_size = 1, .schedule = {.name = "gpipe"}};
  wide.stages.push_back({.layers = {0, 4}, .devices = {{{.devices_per_node = 2}, 0}}, .degrees = {.tensor = 2}});
  w.put("wide.json", to_json(plan{.pipelines = {wide}}, {"local"}, {2}));
  struct wrong {
    std::string options, said;
  };
  for (const auto& [options, said] :
       {wrong{"", "--prompt"}, wrong{"--prompt ''", "--prompt: expected at least one byte"},
        wrong{"--prompt a --ranks 5", "--ranks: found 5, but there are 4 layers"}, wrong{"--prompt a --tokens 0", "--tokens"},
        wrong{"--prompt a --checkpoint none", "there is no whole checkpoint in none"},
        wrong{"--prompt a --plan none.json", "none.json"},
        wrong{"--prompt a --plan wide.json", "wide.json: /pipelines: found a stage of 2 devices, expected one"},
        wrong{"--prompt a --plan other.json --ranks 3", "other.json is for other ranks than the 3 that are there"},
        wrong{"--prompt a --plan short.json", "short.json: /pipelines: found 3 layers, expected 4"}}) {
    CAPTURE(options);
    const auto run = w.run("hetsched-generate" + sizes + options);
    CAPTURE(run.errors);
    CHECK(run.status == 2);
    CHECK(contains(run.errors, said));
    CHECK(std::count(run.errors.begin(), run.errors.end(), '\n') == 1);
    CHECK(run.output.empty());
  }
}
