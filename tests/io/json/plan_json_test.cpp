// SPDX-License-Identifier: Apache-2.0
#include <hetsched/io/json/plan_json.hpp>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include <doctest/doctest.h>
#include <unistd.h>

#include <hetsched/core/random.hpp>
#include <hetsched/schedule/builders/named.hpp>

#include "../../sanitizer_share.hpp"
#include "../documents.hpp"

using namespace hetsched;

namespace {

bytes_t some_bytes(random_source& random) {
  return random.integer(0, 2) == 0 ? 0 : static_cast<bytes_t>(random.uniform(0, random.integer(0, 1) == 0 ? 1e3 : 1e15));
}
double some_seconds(random_source& random) { return random.integer(0, 3) == 0 ? 0 : random.uniform(0, 10); }

/// Parts that add up to 1; empty for one part, and now and then for several.
std::vector<double> some_shares(random_source& random, int parts) {
  std::vector<double> shares;
  if (parts == 1 || random.integer(0, 2) > 0) return shares;
  double sum = 0;
  for (int i = 0; i < parts; ++i) sum += shares.emplace_back(random.uniform(0.1, 1));
  for (auto& s : shares) s /= sum;
  return shares;
}

stage_plan random_stage(random_source& random, int subclusters) {
  stage_plan s;
  const int subcluster = random.integer(0, subclusters - 1), per_node = 1 << random.integer(0, 3);
  const int groups = random.integer(0, 3) == 0 ? random.integer(2, 3) : 1;
  for (int g = 0; g < groups; ++g)
    s.devices.push_back({.mesh = {subcluster, random.integer(1, 2), per_node}, .first_device = 16 * g + random.integer(0, 8)});
  int devices = device_count(s.devices);
  s.degrees.tensor = random.integer(0, 1) == 0 ? per_node : 1;
  devices /= s.degrees.tensor;
  s.degrees.context = devices % 2 == 0 && random.integer(0, 2) == 0 ? 2 : 1;
  s.degrees.data = devices / s.degrees.context;
  s.degrees.expert = s.degrees.data % 2 == 0 && random.integer(0, 2) == 0 ? 2 : 1;
  s.shares = {.data = some_shares(random, s.degrees.data),
              .context = some_shares(random, s.degrees.context),
              .tensor = some_shares(random, s.degrees.tensor),
              .state = some_shares(random, s.degrees.data)};
  s.recompute = static_cast<recomputation>(random.integer(0, 2));
  s.zero = random.integer(0, 3);
  s.warmup = random.integer(0, 20);
  s.cost = {.forward_s = some_seconds(random),
            .backward_s = some_seconds(random),
            .activation_bytes = some_bytes(random),
            .gradient_bytes = some_bytes(random),
            .optimizer_bytes = some_bytes(random),
            .temporary_bytes = some_bytes(random)};
  s.cost.weight_backward_s = random.integer(0, 1) == 0 ? 0 : s.cost.backward_s * random.uniform(0, 1);
  s.cost.weight_bytes = s.cost.gradient_bytes + s.cost.optimizer_bytes + some_bytes(random);
  if (random.integer(0, 1) == 0)
    s.overheads = {.runtime_bytes = some_bytes(random),
                   .buffer_bytes = some_bytes(random),
                   .fragmentation = random.uniform(0, 2),
                   .margin = random.uniform(0, 2)};
  s.update_s = some_seconds(random);
  s.memory_bytes = some_bytes(random);
  s.memory_capacity_bytes = some_bytes(random);
  return s;
}

/// A schedule by its name, with its actions where the name does not tell them, and now and then where it does.
schedule_plan random_schedule_plan(random_source& random, int stages, int microbatches) {
  auto names = schedule_names();
  names.push_back("auto");
  names.push_back("my own");
  schedule_plan s{.name = std::string(names[static_cast<std::size_t>(random.integer(0, static_cast<int>(names.size()) - 1))])};
  const bool known = s.name != "auto" && s.name != "my own";
  if (known && random.integer(0, 3) > 0) return s;
  pipeline bare;
  bare.forward_s.assign(static_cast<std::size_t>(stages), 1);
  bare.backward_s.assign(static_cast<std::size_t>(stages), 2);
  bare.transfer_s.assign(static_cast<std::size_t>(stages - 1), 0.5);
  try {
    s.actions = build_schedule(known ? std::string_view(s.name) : "zb_h1", bare, microbatches);
  } catch (const input_error&) {  // not for so many stages or microbatches
    s.actions = build_schedule("1f1b", bare, microbatches);
  }
  return s;
}

std::optional<training_stack> some_stack(random_source& random) {
  if (random.integer(0, 2) == 0) return std::nullopt;
  auto s = training_stacks()[static_cast<std::size_t>(random.integer(0, static_cast<int>(training_stacks().size()) - 1))];
  if (random.integer(0, 1) == 0) return s;
  s.name = "mine";
  s.bf16.reduced_bytes = random.integer(0, 9);
  s.activations.selective_kept = random.uniform();
  s.overheads.runtime_bytes = some_bytes(random);
  s.host_launch_s = random.integer(0, 40) * 1e-6;
  return s;
}

plan_file random_plan(random_source& random) {
  plan_file file;
  const int subclusters = random.integer(1, 3);
  for (int k = 0; k < subclusters; ++k) {
    file.subclusters.push_back("part " + std::to_string(k) + (k == 1 ? " \"\\é/" : ""));
    if (subclusters != 2) file.device_counts.push_back(random.integer(1, 1'000'000));
  }
  auto& p = file.plan;
  if (random.integer(0, 3) > 0) p.planner = "planner " + std::to_string(random.integer(0, 9));
  if (random.integer(0, 3) == 0) p.objective = plan_objective::cost;
  const int layers = random.integer(1, 30), pipelines = random.integer(1, 4);
  for (int l = 0; l < pipelines; ++l) {
    auto& line = p.pipelines.emplace_back();
    line.microbatches = random.integer(1, 12);
    line.microbatch_size = random.integer(1, 100);
    const int stages = random.integer(1, std::min(6, layers));
    int first = 0;
    for (int i = 0; i < stages; ++i) {
      const int left = stages - 1 - i;  // each with a layer at least
      const int last = left == 0 ? layers : random.integer(first + 1, layers - left);
      auto& s = line.stages.emplace_back(random_stage(random, subclusters));
      s.layers = {first, last};
      first = last;
    }
    if (random.integer(0, 3) > 0)
      for (int i = 0; i + 1 < stages; ++i) {
        line.boundaries.push_back({.bytes = some_bytes(random),
                                   .forward_s = some_seconds(random),
                                   .backward_s = some_seconds(random),
                                   .extra_bytes = some_bytes(random),
                                   .reshard = random.integer(0, 1) == 0 ? "" : "direct"});
        auto& b = line.boundaries.back();
        if (random.integer(0, 2) == 0) b.forward_occupied_s = b.forward_s * random.uniform();
        if (random.integer(0, 2) == 0) b.backward_occupied_s = b.backward_s * random.uniform();
      }
    for (int c = random.integer(0, 2); c > 0; --c)
      line.copy_sync.push_back({.owner = random.integer(0, first - 1),
                                .layer = random.integer(0, first - 1),
                                .bytes = some_bytes(random),
                                .seconds = some_seconds(random)});
    line.schedule = random_schedule_plan(random, stages, line.microbatches);
  }
  std::vector<int> used(static_cast<std::size_t>(subclusters), 0);  // no device twice
  for (auto& line : p.pipelines)
    for (auto& s : line.stages)
      for (auto& group : s.devices) {
        int& next = used[static_cast<std::size_t>(group.mesh.subcluster)];
        group.first_device = next + random.integer(0, 5);
        next = group.first_device + group.mesh.device_count();
      }
  if (pipelines > 1)
    for (int g = random.integer(0, 3); g > 0; --g) {
      gradient_sync_plan sync{.layers = {random.integer(0, 3), random.integer(4, 9)}};
      for (int l = 0; l < pipelines; ++l)
        if (random.integer(0, 3) > 0) sync.pipelines.push_back(l);
      sync.bytes = some_bytes(random);
      sync.seconds = some_seconds(random);
      p.gradient_sync.push_back(std::move(sync));
    }
  if (random.integer(0, 1) == 0)
    p.setting = {.costs = random.integer(0, 1) == 0 ? "" : "tile",
                 .granularity = random.integer(0, 1) == 0 ? "" : "sublayer",
                 .sequence = random.integer(0, 1) == 0 ? 0 : random.integer(1, 1 << 20),
                 .precision = random.integer(0, 1) == 0 ? "" : "bf16",
                 .attention = random.integer(0, 1) == 0 ? "" : "flash",
                 .stack = some_stack(random),
                 .further_tokens = random.integer(0, 2)};
  if (random.integer(0, 3) > 0)
    p.predicted = {.iteration_s = some_seconds(random),
                   .lower_bound_s = some_seconds(random),
                   .samples_per_s = random.uniform(0, 1e6),
                   .mfu = random.uniform(),
                   .load_balance = random.uniform(),
                   .period_s = some_seconds(random),
                   .cost_per_sample = random.integer(0, 1) == 0 ? std::nullopt : std::optional(random.uniform(0, 10))};
  if (random.integer(0, 2) > 0) {
    auto& evidence = p.evidence.emplace();
    evidence = {.objective_value = some_seconds(random),
                .objective_bound = some_seconds(random),
                .complete = random.integer(0, 1) == 0,
                .work = {}};
    for (const char* name : {"evaluations", "labels", "moves/s"})
      if (random.integer(0, 2) > 0) evidence.work.emplace_back(name, some_bytes(random));
  }
  return file;
}

plan_file parse(const std::string& text) { return parse_plan(text, "x.json"); }

struct folder {
  std::filesystem::path path = std::filesystem::temp_directory_path() / ("hetsched_plan_" + std::to_string(::getpid()));
  folder() { std::filesystem::create_directories(path); }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  ~folder() { std::filesystem::remove_all(path); }
  [[nodiscard]] std::string operator/(const char* name) const { return (path / name).string(); }
};

}  // namespace

TEST_CASE("3,000 random plans come back equal: pipelines, groups, shares, every schedule's name, actions, evidence, setting") {
  random_source random(41);
  int with_actions = 0, with_shares = 0, with_groups = 0;
  std::vector<std::string> names;
  for (int round = 0; round < 3000 / hetsched::test::search_share; ++round) {
    CAPTURE(round);
    const auto file = random_plan(random);
    const auto text = to_json(file.plan, file.subclusters, file.device_counts);
    CAPTURE(text);
    REQUIRE(parse(text) == file);
    // And as text, so that files that tell the same are the same.
    REQUIRE(to_json(parse(text).plan, file.subclusters, file.device_counts) == text);
    for (const auto& line : file.plan.pipelines) {
      with_actions += line.schedule.actions.has_value();
      names.push_back(line.schedule.name);
      for (const auto& s : line.stages) {
        with_shares += !(s.shares == axis_shares{});
        with_groups += s.devices.size() > 1;
      }
    }
  }
  CHECK(with_actions > 500 / hetsched::test::search_share);
  CHECK(with_shares > 500 / hetsched::test::search_share);
  CHECK(with_groups > 500 / hetsched::test::search_share);
  for (const auto name : schedule_names())
    CHECK(std::count(names.begin(), names.end(), name) > 50 / hetsched::test::search_share);
  CHECK(std::count(names.begin(), names.end(), "auto") > 50 / hetsched::test::search_share);
}

TEST_CASE("work of a search is read in the order of its names") {
  plan_file file = parse(documents::plan);
  file.plan.evidence->work = {{"z", 1}, {"a", 2}};
  auto sorted = file;
  std::sort(sorted.plan.evidence->work.begin(), sorted.plan.evidence->work.end());
  CHECK(parse(to_json(file.plan, file.subclusters, file.device_counts)) == sorted);
}

TEST_CASE("all that a document of version 2 says") {
  const auto file = parse(documents::plan);
  const auto& p = file.plan;
  CHECK(p.planner == "interop_dp");
  CHECK(p.objective == plan_objective::iteration);
  CHECK(file.subclusters == std::vector<std::string>{"v100e", "a100"});
  CHECK(file.device_counts == std::vector{32, 8});
  CHECK(p.setting == plan_setting{"analytic", "block", 1024, "fp16", "flash"});
  REQUIRE(p.pipelines.size() == 2);
  CHECK(microbatch_count(p) == 66);
  CHECK(sample_count(p) == 70);
  const auto& line = p.pipelines[0];
  REQUIRE(line.stages.size() == 2);
  const auto& s = line.stages[0];
  CHECK(s.layers == layer_range{0, 40});
  CHECK(s.devices == std::vector<device_group>{{{0, 1, 4}, 0}, {{0, 1, 4}, 8}});
  CHECK(s.where() == placement{{0, 2, 4}, {2, 1, 4}, recomputation::full, 1});
  CHECK(s.shares == axis_shares{.data = {0.25, 0.75}});
  CHECK(s.warmup == 3);
  CHECK(s.cost == stage_cost{0.1, 0.2, 600, 50, 0.05, 100, 300, 20});
  CHECK(s.overheads == memory_overheads{100, 30, 0.5, 0.25});
  CHECK(s.update_s == 0.01);
  CHECK(s.memory_bytes == 1000);
  CHECK(s.memory_capacity_bytes == 2000);
  CHECK(line.boundaries == std::vector<boundary_plan>{{4096, 0.05, 0.06, 7, "direct", 0.025, 0.03125}});
  CHECK(line.schedule == schedule_plan{.name = "h1f1b"});
  const auto& other = p.pipelines[1];
  CHECK(other.microbatch_size == 3);
  CHECK(other.schedule.name == "mine");
  REQUIRE(other.schedule.actions);
  CHECK(*other.schedule.actions == one_f_one_b({1}, 2));
  CHECK(other.boundaries.empty());
  CHECK(p.gradient_sync == std::vector<gradient_sync_plan>{{{0, 40}, {0, 1}, 80, 0.5}});
  CHECK(p.predicted == prediction{20.5, 20, 3.1, 0.4, 0.9, 0.3});
  CHECK(p.evidence == search_evidence{20.25, 20, false, {{"evaluations", 12}, {"labels", 3456}}});
}

TEST_CASE("a plan by hand needs layers, devices, degrees and a schedule only") {
  const auto file = parse(R"({ "format": "hetsched/plan", "version": 2,
    "pipelines": [ { "microbatches": 8, "schedule": {"name": "1f1b"}, "stages": [
      { "layers": [0, 3], "devices": [ {"subcluster": "b", "first_device": 0, "devices_per_node": 2} ], "degrees": {"tensor": 2} },
      { "layers": [4, 5], "devices": [ {"subcluster": "a", "first_device": 1, "devices_per_node": 1} ], "degrees": {} } ] } ] })");
  CHECK(file.subclusters == std::vector<std::string>{"b", "a"});
  CHECK(file.device_counts.empty());
  plan expected;
  expected.pipelines = {{.microbatches = 8, .schedule = {.name = "1f1b"}}};
  expected.pipelines[0].stages = {{.layers = {0, 4}, .devices = {{{0, 1, 2}, 0}}, .degrees = {.tensor = 2}},
                                  {.layers = {4, 6}, .devices = {{{1, 1, 1}, 1}}}};
  CHECK(file.plan == expected);
  CHECK(device_numbers(file).empty());
}

TEST_CASE("files of version 1 are read: transfers of both ways alike, one schedule for all pipelines") {
  const auto file = parse(documents::plan_1);
  const auto& p = file.plan;
  CHECK(p.planner == "interop_dp");
  CHECK(p.objective == plan_objective::iteration);
  CHECK(!p.evidence);
  CHECK(microbatch_count(p) == 64);
  REQUIRE(p.pipelines.size() == 1);
  const auto& line = p.pipelines[0];
  REQUIRE(line.stages.size() == 2);
  CHECK(line.schedule == schedule_plan{.name = "h1f1b"});
  CHECK(line.boundaries == std::vector<boundary_plan>{{.forward_s = 0.05, .backward_s = 0.05}});
  CHECK(line.stages[0].devices == std::vector<device_group>{{{0, 1, 8}, 0}});
  CHECK(line.stages[0].degrees == degrees{2, 1, 4});
  CHECK(line.stages[0].warmup == 3);
  CHECK(line.stages[1].devices == std::vector<device_group>{{{1, 1, 1}, 2}});
  CHECK(line.stages[1].cost == stage_cost{.forward_s = 0.1, .backward_s = 0.2});
  CHECK(line.stages[1].memory_capacity_bytes == 2000);
  CHECK(p.predicted.iteration_s == 20.5);
  // Written again it is of version 2, and says the same.
  const auto again = to_json(p, file.subclusters);
  CHECK(again.find("\"version\": 2") != std::string::npos);
  CHECK(parse(again) == file);
}

TEST_CASE("actions in a file beside the plan") {
  const folder at;
  const auto order = build_schedule("zb_h1", {.forward_s = {1, 1}, .backward_s = {2, 2}, .transfer_s = {0}}, 3);
  write_file(at / "orders.csv", to_csv(order));
  const std::string text = R"({ "format": "hetsched/plan", "version": 2,
    "pipelines": [ { "microbatches": 3, "schedule": {"name": "auto", "actions": "orders.csv"}, "stages": [
      { "layers": [0, 3], "devices": [ {"subcluster": "a", "first_device": 0, "devices_per_node": 1} ], "degrees": {} },
      { "layers": [4, 5], "devices": [ {"subcluster": "a", "first_device": 1, "devices_per_node": 1} ], "degrees": {} } ] } ] })";
  write_file(at / "plan.json", text);
  const auto file = read_plan(at / "plan.json");
  REQUIRE(file.plan.pipelines[0].schedule.actions);
  CHECK(*file.plan.pipelines[0].schedule.actions == order);
  // Written, the actions are in the plan itself.
  CHECK(parse(to_json(file.plan, file.subclusters)) == file);

  const auto why = [&](const std::string& changed) {
    write_file(at / "plan.json", changed);
    try {
      (void)read_plan(at / "plan.json");
    } catch (const file_error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  using documents::with;
  CHECK(
      why(with(text, "\"microbatches\": 3", "\"microbatches\": 4")).find("/pipelines/0/schedule/actions: found 2 ranks and 3") !=
      std::string::npos);
  CHECK(why(with(text, "orders.csv", "other.csv")).find("other.csv: cannot be opened") != std::string::npos);
  for (const char* outside : {"/orders.csv", "../orders.csv", "a/orders.csv", ".", ".."})
    CHECK(why(with(text, "orders.csv", outside)).find("in the folder of the plan") != std::string::npos);
}

TEST_CASE("on a cluster: names are found, devices are there, and none belongs to two stages") {
  const auto hardware = parse_cluster(documents::cluster, "x.json");
  auto file = parse(documents::plan);
  const auto placed = plan_on(file, hardware, "x.json");
  CHECK(placed == file.plan);  // the same order of subclusters
  std::vector<int> numbers;
  for (const auto& line : file.plan.pipelines)
    for (const auto& s : line.stages)
      for (const auto& g : s.devices)
        for (int i = 0; i < g.mesh.device_count(); ++i) numbers.push_back((g.mesh.subcluster == 0 ? 0 : 32) + g.first_device + i);
  CHECK(numbers.front() == 0);
  CHECK(device_numbers(file) == numbers);
  CHECK(to_json(placed, hardware) == to_json(placed, file.subclusters, {32, 8}));

  auto turned = hardware;
  std::swap(turned.subclusters[0], turned.subclusters[1]);
  CHECK(plan_on(file, turned, "x.json").pipelines[0].stages[0].devices[1].mesh.subcluster == 1);
  CHECK(plan_on(file, turned, "x.json").pipelines[1].stages[0].devices[0].mesh.subcluster == 0);

  const auto refused = [&](auto change, const std::string& pointer, const std::string& part) {
    auto changed = file;
    change(changed);
    CAPTURE(part);
    try {
      (void)plan_on(changed, hardware, "x.json", "cluster c");
      FAIL_CHECK("no error");
    } catch (const file_error& e) {
      const std::string what = e.what();
      CAPTURE(what);
      CHECK(e.pointer() == pointer);
      CHECK(what.find(part) != std::string::npos);
    }
  };
  const std::string group = "/pipelines/0/stages/0/devices/1";
  refused([](plan_file& f) { f.subclusters[0] = "v100"; }, "/pipelines/0/stages/0/devices/0/subcluster",
          "cluster c has no subcluster \"v100\"; did you mean \"v100e\"?");
  const auto change_group = [](auto change) {
    return [change](plan_file& f) { change(f.plan.pipelines[0].stages[0].devices[1]); };
  };
  refused(change_group([](device_group& g) { g.mesh.nodes = 5; }), group + "/nodes", "found 5, expected at most the 4");
  refused(change_group([](device_group& g) { g.mesh.devices_per_node = 9; }), group + "/devices_per_node", "at most the 8");
  refused(change_group([](device_group& g) { g.first_device = 29; }), group + "/first_device", "v100e has 32");
  refused(change_group([](device_group& g) { g.first_device = 3; }), group + "/first_device",
          "device 3 of v100e belongs to pipeline 0, stage 0 already");
  refused([](plan_file& f) { f.plan.pipelines[1].stages[0].devices[0].first_device = 1; },
          "/pipelines/1/stages/0/devices/0/first_device",
          "device 2 of a100 belongs to pipeline 0, stage 1 already, and cannot to pipeline 1, stage 0");
  file.device_counts = {32, 7};
  CHECK_THROWS_AS((void)device_numbers(file), input_error);
}

TEST_CASE("plan.json: a plan for inference has its own figures, and no backward") {
  inference_plan p{.planner = "placement", .in_flight = 4, .batch_size = 2};
  for (int i = 0; i < 2; ++i)
    p.stages.push_back(
        {.layers = {3 * i, 3 * i + 3}, .devices = {{{0, 1, 1}, i}}, .cost = {.forward_s = 0.5, .weight_bytes = 7}});
  p.boundaries = {{.bytes = 9, .forward_s = 0.25, .forward_occupied_s = 0.125}};
  p.setting.sequence = 640;
  p.evidence = search_evidence{.objective_value = 0.5, .objective_bound = 0.25, .work = {{"labels", 3}}};
  p.predicted =
      inference_prediction{.latency_s = 0.5, .first_token_s = 0.25, .token_s = 0.125, .requests_per_s = 4, .tokens_per_s = 12};
  const auto text = to_json(p, {"a"}, {2});
  CHECK(text.find("\"microbatches\": 4") != std::string::npos);
  CHECK(text.find("\"name\": \"forward\"") != std::string::npos);
  CHECK(text.find("\"update_s\"") == std::string::npos);
  CHECK(text.find("iteration_s") == std::string::npos);
  const auto back = parse_any_plan(text, "plan.json");
  REQUIRE(std::holds_alternative<inference_plan_file>(back));
  CHECK(std::get<inference_plan_file>(back) == inference_plan_file{p, {"a"}, {2}});
  CHECK_THROWS_WITH_AS(static_cast<void>(parse_plan(text, "plan.json")),
                       "plan.json: a plan with the objective latency is for inference: it has no iteration", file_error);
  // What plays and draws pipelines takes batches as microbatches, and nobody takes them for training.
  const folder at;
  write_file(at / "plan.json", text);
  const auto drawn = read_pipelines(at / "plan.json").plan;
  CHECK(drawn.pipelines == std::vector{forward_pipeline(p)});
  CHECK_THROWS_AS(static_cast<void>(objective_of(drawn)), input_error);
  const auto changed = [&](const std::string& from, const std::string& to) {
    auto other = text;
    other.replace(other.find(from), from.size(), to);
    return [other] { static_cast<void>(parse_any_plan(other, "plan.json")); };
  };
  CHECK_NOTHROW(changed("plan", "plan")());
  for (const auto& [from, to, why] :
       {std::tuple{"\"forward_s\": 0.5", "\"forward_s\": 0.5, \"update_s\": 1", "/pipelines/0/stages/0/update_s: is of training"},
        {"\"name\": \"forward\"", "\"name\": \"1f1b\"", "/pipelines/0/schedule/name: found \"1f1b\", expected forward"},
        {"\"name\": \"forward\"", "\"name\": \"forward\", \"actions\": \"x\"", "/pipelines/0/schedule/actions: is of training"},
        {"\"microbatches\"", "\"copy_sync\": [], \"microbatches\"", "/pipelines/0/copy_sync: is of training"},
        {"\"pipelines\"", "\"gradient_sync\": [], \"pipelines\"", "/gradient_sync: is of training"},
        {"\"token_s\"", "\"iteration_s\"", "iteration_s"},
        {"\"latency\"", "\"iteration\"", "/predicted"},
        {"\"pipelines\": [", "\"pipelines\": [{}, ", "/pipelines: found 2 pipelines, expected one"}}) {
    CAPTURE(from);
    CAPTURE(to);
    std::string said;
    try {
      changed(from, to)();
    } catch (const file_error& wrong) {
      said = wrong.what();
    }
    CHECK_MESSAGE(said.find(why) != std::string::npos, said);
  }
  auto other = text;
  other.replace(other.find("latency\""), 7, "energy");
  CHECK_THROWS_WITH_AS(static_cast<void>(parse_plan(other, "plan.json")),
                       "plan.json: /objective: found \"energy\", expected one of iteration, cost, latency, throughput",
                       file_error);
}
