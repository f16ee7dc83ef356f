// SPDX-License-Identifier: Apache-2.0
// Ranks of hetsched-train on fake GPUs: in one process, and on processes whose hosts share a network, some without a GPU.
// Compiled by itself: it has definitions of its own for what it includes.
#include <train/layers.hpp>
#include <train/plan.hpp>

#include <doctest/doctest.h>

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <hetsched/cuda/local_communicator.hpp>
#include <hetsched/cuda_check/api.hpp>
#include <hetsched/gloo.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>

#include <gpt/model.hpp>

using namespace hetsched;

// The commands compile these once for all of them; here they are there before they are used.
namespace train {
template <>
any_layer<gpt::tensor<float>> make_layer<float>(const gpt::config& m, int layer, const device_axis<float>& axis,
                                                recomputation recompute, const device_axis<float>& context,
                                                const device_axis<float>& expert, const std::vector<double>& shares) {
  return gpt::make_layer<float>(m, layer, axis, recompute, context, expert, shares);
}
template <>
loss_value<gpt::tensor<float>> cross_entropy_part<float>(gpt::tensor<float> logits, const gpt::tensor<float>& targets,
                                                         std::size_t all_rows) {
  return gpt::cross_entropy_part(std::move(logits), targets, all_rows);
}
template <>
std::vector<layer_profile> profile_model<float>(const gpt::config&, std::string_view, int, const profile_options&,
                                                const device_axis<float>&) {
  throw std::logic_error("there is a plan");
}
outcome<plan_file> plan_for(const gpt::config&, const equal_ranks&, std::vector<double>, std::vector<double>, int) {
  throw std::logic_error("there is a plan");
}
}  // namespace train

#include <train/gpu_rank.hpp>
#include <train/over_ipc.hpp>
#include <train/over_nccl.hpp>

#include <gpt_cuda/timing.hpp>
#include <gpt_cuda/training.hpp>

#include "../cuda/fake_nccl.hpp"
#include "fake_launcher.hpp"

using namespace hetsched::test;

namespace {

using api = cuda_check::api;
using fake_tensor = gpt_cuda::tensor<api>;
using local = cuda_local_communicator<fake_tensor, api>;
using staged_rank = train::gpu_rank<api, cuda_stager<fake_tensor, api>>;

struct folder {
  std::filesystem::path path;
  explicit folder(const std::string& name)
      : path(std::filesystem::temp_directory_path() / (name + "-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path);
  }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  ~folder() { std::filesystem::remove_all(path); }
};

/// Layers [0, 2) and [2, 4) of a small GPT, one rank each, or a pipeline of one rank besides.
train::job small_job(bool two_pipelines = false) {
  train::job j{.given = {},
               .config = {.layers = 2, .hidden = 24, .heads = 6, .sequence = 7, .vocab = 256},
               .corpus = {},
               .validation = {},
               .place = {},
               .plan = plan_file{},
               .told = {}};
  for (int i = 0; i < 40; ++i) j.corpus += "so it was, and so it is, and so it will be; ";
  j.validation = j.corpus;
  const auto stage = [](int first, int last) {
    stage_plan s;
    s.layers = {first, last};
    return s;
  };
  auto& lines = j.plan->plan.pipelines;
  lines.push_back({.microbatches = 4, .microbatch_size = 2, .stages = {stage(0, 2), stage(2, 4)}, .schedule = {.name = "1f1b"}});
  lines.back().boundaries.resize(1);
  if (two_pipelines)
    lines.push_back({.microbatches = 1, .microbatch_size = 2, .stages = {stage(0, 4)}, .schedule = {.name = "1f1b"}});
  j.given.steps = 4;
  j.given.optimizer = "sgd";  // adamw makes steps of what is rounding alone
  j.given.learning_rate = 0.1;
  j.given.momentum = 0.5;
  j.given.products = "fp32";
  j.given.device = "cuda";
  j.given.validation = "the same";
  j.given.validation_batches = 1;
  j.given.place.deadline_s = 60;
  j.given.clip = 0.5;
  return j;
}

struct told {
  std::vector<double> losses, validation;
};
told of(const train::job::result& r) {
  told t{.losses = r.losses, .validation = {}};
  for (const auto& [step, loss] : r.validations) t.validation.push_back(loss);
  return t;
}

void expect_close(const std::vector<double>& a, const std::vector<double>& b, double within = 1e-5) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i] == doctest::Approx(b[i]).epsilon(within));
}

/// In one process.
train::job::result on_local_gpus(const train::job& j, const std::vector<int>& places, std::uint64_t seed) {
  cuda_check::machine machine({.seed = seed, .devices = 8});
  train::job::result result;
  {
    cuda_devices<api> all(api{&machine}, {.records = 256});
    run_on_threads(local::connect(all, places), [&](local& comm) {
      train::job::result own;
      train::train_rank(j, comm, train::gpu_rank<api>(all, places[static_cast<std::size_t>(comm.rank())], comm.rank(), j.given),
                        own);
      if (comm.rank() == 0) result = std::move(own);
    });
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  for (const auto& l : machine.leaks()) FAIL_CHECK(l);
  return result;
}

/// On processes, each a thread here. Places: a GPU, or -1: a host without one; with NCCL or CUDA IPC, a host beside GPUs.
train::job::result on_processes(train::job j, const std::vector<int>& places, std::uint64_t seed) {
  const folder store("gpu-rank-test-" + std::to_string(seed));
  j.given.place.transport = "gloo";
  cuda_check::machine machine({.seed = seed, .devices = 8});
  fake_nccl_world world(machine);
  train::job::result result;
  std::vector<std::exception_ptr> failures(places.size());
  {
    cuda_devices<api> all(api{&machine}, {.records = 256});
    const auto run = [&](auto&& here, int rank, cuda_devices<api>& devices, int place = -1) {
      using tensor = typename std::remove_cvref_t<decltype(here)>::tensor;
      process_place where;
      where.rank = rank;
      where.ranks = static_cast<int>(places.size());
      gloo_options how;
      how.rendezvous = "file:" + store.path.string();
      how.connect_deadline_s = j.given.place.deadline_s;
      gloo_communicator<tensor> comm(where, how);
      train::job::result own;
      if constexpr (std::is_same_v<tensor, fake_tensor>) {
        if (j.given.nccl)
          train::over_nccl<tensor>(devices, place, fake_nccl{&world}, comm, {.deadline_s = j.given.place.deadline_s},
                                   [&](auto& both) { train::train_rank(j, both, here, own); });
        else if (j.given.cuda_ipc)
          train::over_ipc<tensor>(devices, place, comm, j.given.place.deadline_s,
                                  [&](auto& both) { train::train_rank(j, both, here, own); });
        else
          train::train_rank(j, comm, here, own);
      } else {
        train::train_rank(j, comm, here, own);
      }
      if (rank == 0) result = std::move(own);
    };
    std::vector<std::jthread> threads;
    for (int r = 0; r < static_cast<int>(places.size()); ++r)
      threads.emplace_back([&, r, place = places[static_cast<std::size_t>(r)]] {
        cuda_devices<api> own(api{&machine, r}, {.records = 256});
        auto& devices = j.given.cuda_ipc ? own : all;  // of a process of its own
        try {
          if (place < 0 && !j.given.nccl && !j.given.cuda_ipc)
            run(train::host_rank<float>(), r, devices);
          else
            run(staged_rank(devices, place, r, j.given), r, devices, place);
        } catch (...) {
          failures[static_cast<std::size_t>(r)] = std::current_exception();
        }
      });
  }
  for (const auto& f : failures)
    if (f) std::rethrow_exception(f);
  CHECK((machine.calls("cudaIpcOpenMemHandle") > 0) == j.given.cuda_ipc);
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  for (const auto& l : machine.leaks()) FAIL_CHECK(l);
  return result;
}

}  // namespace

TEST_CASE("GPUs in one process, on processes and beside hosts without one have the losses of hosts") {
  auto j = small_job(true);
  j.given.accumulate = 2;
  const auto hosts = of(on_processes(j, {-1, -1, -1}, 1));
  REQUIRE(hosts.losses.size() == 4);
  REQUIRE(hosts.validation.size() == 1);
  CHECK(hosts.losses.back() < hosts.losses.front());
  std::vector<double> first;
  const auto expect = [&](const told& found, bool all_gpus) {
    expect_close(found.losses, hosts.losses);
    expect_close(found.validation, hosts.validation);
    if (!all_gpus) return;
    if (first.empty()) first = found.losses;
    CHECK(found.losses == first);  // whatever lies between: the same bits
  };
  expect(of(on_local_gpus(j, {0, 1, 2}, 2)), true);
  expect(of(on_local_gpus(j, {0, -1, 0}, 3)), true);
  expect(of(on_processes(j, {0, 1, 2}, 4)), true);
  expect(of(on_processes(j, {0, -1, 1}, 5)), false);
  j.given.graphs = true;
  expect(of(on_local_gpus(j, {0, 1, 2}, 6)), true);
  j.given.graphs = false;
  j.given.nccl = true;
  expect(of(on_processes(j, {0, 1, 2}, 14)), true);
  expect(of(on_processes(j, {0, -1, 1}, 15)), true);
  j.given.nccl = false;
  j.given.cuda_ipc = true;
  expect(of(on_processes(j, {0, 1, 2}, 70)), true);
  expect(of(on_processes(j, {0, 1, -1}, 71)), false);
}

TEST_CASE("ranks on GPUs work in new orders, also by way of the hosts, and legs of a transfer are added up") {
  auto j = small_job(true);
  const auto wanted = of(on_local_gpus(j, {0, 1, 2}, 19));
  j.given.replan_every = 1;
  j.given.replan_gain = -1;  // whatever there is to gain
  CHECK(of(on_local_gpus(j, {0, 1, 2}, 20)).losses == wanted.losses);
  CHECK(of(on_processes(j, {0, 1, 2}, 21)).losses == wanted.losses);
  j.given.nccl = true;
  CHECK(of(on_processes(j, {0, 1, 2}, 22)).losses == wanted.losses);
  j.given.nccl = false;
  j.given.cuda_ipc = true;
  CHECK(of(on_processes(j, {0, 1, 2}, 23)).losses == wanted.losses);

  timeline t{.ranks = 2, .microbatches = 1, .actions = {}};
  const auto add = [&](action_kind kind, int stage, int rank, int peer, double start_s, double end_s) {
    t.actions.push_back({.what = {.kind = kind, .stage = stage, .microbatch = 0},
                         .rank = rank,
                         .peer = peer,
                         .start_s = start_s,
                         .end_s = end_s});
  };
  using enum action_kind;
  add(forward, 0, 0, -1, 0, 4);
  add(d2h_activation, 0, 0, 1, 4, 5);
  add(network_activation, 0, 0, 1, 5, 15);
  add(h2d_activation, 1, 1, 0, 15, 17);
  add(forward, 1, 1, -1, 17, 20);
  add(backward, 1, 1, -1, 20, 26);
  add(d2h_gradient, 1, 1, 0, 26, 27.5);
  add(network_gradient, 1, 1, 0, 27.5, 40);
  add(h2d_gradient, 0, 0, 1, 40, 43);
  add(backward, 0, 0, -1, 43, 50);
  // Forward, backward, its weights' half, activation, gradient.
  CHECK(train::measured_stages({t}, 2) == std::vector<double>{4, 7, 0, 13, 17, 3, 6, 0, 0, 0});
}

TEST_CASE("stages of several processes train over NCCL, and are refused without it") {
  auto j = small_job();
  j.plan->plan.pipelines[0].stages[0].degrees.data = 2;
  const auto wanted = of(on_local_gpus(j, {0, 1, 2}, 16));
  CHECK_THROWS_WITH_AS((void)on_processes(j, {0, 1, 2}, 17),
                       "--device cuda: stages of several processes without NCCL are not trained on GPUs", input_error);
  j.given.nccl = true;
  j.plan->plan.pipelines[0].stages[0].zero = 3;
  const auto found = of(on_processes(j, {0, 1, 2}, 18));
  CHECK(found.losses == wanted.losses);
  CHECK(found.validation == wanted.validation);
}

TEST_CASE(
    "stages that are cut along tensors, context or experts train on GPUs: in one process, beside ranks on the host, and over "
    "NCCL") {
  struct shape_of_stages {
    degrees first, second;
    std::vector<double> shares;
    recomputation recompute = recomputation::none;
    int experts = 0;
    bool modern = false;  ///< SwiGLU, RMS norms, turned positions, shared heads of keys, no biases
  };
  const std::vector<shape_of_stages> cases{
      {.first = {.tensor = 2}, .second = {}, .shares = {}},
      {.first = {}, .second = {.tensor = 2}, .shares = {}, .modern = true},
      {.first = {.data = 2, .tensor = 2},
       .second = {.tensor = 2},
       .shares = {2.0 / 3, 1.0 / 3},
       .recompute = recomputation::selective},
      {.first = {.context = 2}, .second = {.context = 4}, .shares = {}},
      {.first = {.data = 2, .expert = 2}, .second = {.data = 2, .tensor = 2, .expert = 2}, .shares = {}, .experts = 4},
      {.first = {.context = 2}, .second = {.context = 2, .tensor = 2}, .shares = {}, .modern = true}};
  for (std::size_t k = 0; k < cases.size(); ++k) {
    CAPTURE(k);
    const auto& c = cases[k];
    auto j = small_job();
    j.config.sequence = 8;
    if (c.modern)
      j.config = {.layers = 2,
                  .hidden = 24,
                  .heads = 4,
                  .kv_heads = 2,
                  .sequence = 8,
                  .vocab = 256,
                  .norm = gpt::norm_kind::rms,
                  .activation = gpt::activation_kind::swiglu,
                  .positions = gpt::position_kind::rotary,
                  .bias = false};
    j.config.experts = c.experts;
    auto& stages = j.plan->plan.pipelines[0].stages;
    stages[0].degrees = c.first;
    stages[1].degrees = c.second;
    stages[0].shares.tensor = c.shares;
    stages[0].recompute = c.recompute;
    const auto size_of = [](const degrees& d) { return d.data * d.context * d.tensor; };
    const int ranks = size_of(c.first) + size_of(c.second);
    std::vector<int> gpus, mixed;
    for (int r = 0; r < ranks; ++r) {
      gpus.push_back(r);
      mixed.push_back(r % 2 == 0 ? r % 3 : -1);
    }
    const auto hosts = of(on_processes(j, std::vector<int>(static_cast<std::size_t>(ranks), -1), 30 + k));
    CHECK(hosts.losses.back() < hosts.losses.front());
    const auto close_to_hosts = [&](const told& found) {
      expect_close(found.losses, hosts.losses);
      expect_close(found.validation, hosts.validation);
    };
    const auto local = of(on_local_gpus(j, gpus, 40 + k));
    close_to_hosts(local);
    CHECK(of(on_local_gpus(j, mixed, 50 + k)).losses == local.losses);
    j.given.nccl = true;
    close_to_hosts(of(on_processes(j, gpus, 60 + k)));
    j.given.sums_in_order = true;
    const auto over_nccl = of(on_processes(j, gpus, 60 + k));
    CHECK(over_nccl.losses == local.losses);
    CHECK(over_nccl.validation == local.validation);
    j.given.products = "bf16";
    const auto half = of(on_local_gpus(j, gpus, 70 + k));
    expect_close(half.losses, hosts.losses, 1e-2);
    CHECK(half.losses != local.losses);
  }
}

namespace {

/// The job's losses by the example's own trainer, with bf16 numbers between layers.
std::vector<double> losses_of_own_trainer(const train::job& j, const std::vector<int>& places, std::uint64_t seed) {
  cuda_check::machine machine({.seed = seed, .devices = 8});
  gpt_cuda::trained found;
  {
    cuda_devices<api> all(api{&machine}, {.records = 256});
    found = gpt_cuda::train(all, {.model = gpt_cuda::shape_of(j.config, j.given.products == "bf16", true),
                                  .layout = make_training_layout(j.plan->plan, {.schedule = {}, .chunks = 1}),
                                  .places = places,
                                  .first_weights = [&](int l) { return train::first_weights(j.config, l); },
                                  .draw = [&](std::int64_t step, int first, int samples) -> gpt_cuda::batch {
                                    const auto b = gpt::draw<float>(
                                        j.corpus, j.config.sequence,
                                        {.seed = j.given.model.seed, .step = step, .first_sample = first, .samples = samples});
                                    return {train::to_numbers(b.inputs), train::to_numbers(b.targets)};
                                  },
                                  .optimizer = train::make_optimizer(j.given),
                                  .clip = j.given.clip,
                                  .steps = j.given.steps});
  }
  for (const auto& r : machine.reports()) FAIL_CHECK(r);
  return found.losses;
}

}  // namespace

TEST_CASE("bf16 numbers between layers: the losses of the example's own trainer to the bit, whatever lies between ranks") {
  auto j = small_job(true);
  const auto wide = on_local_gpus(j, {0, 1, 2}, 80);
  const auto wanted = losses_of_own_trainer(j, {0, 1, 2}, 81);
  CHECK(wanted != wide.losses);
  j.given.boundaries = "bf16";
  CHECK(on_local_gpus(j, {0, 1, 2}, 82).losses == wanted);
  CHECK(on_local_gpus(j, {0, -1, 0}, 83).losses == wanted);
  CHECK(on_processes(j, {0, 1, 2}, 84).losses == wanted);
  j.given.graphs = true;
  CHECK(on_local_gpus(j, {0, 1, 2}, 85).losses == wanted);
  j.given.graphs = false;
  j.given.nccl = true;
  CHECK(on_processes(j, {0, 1, 2}, 86).losses == wanted);
  CHECK(on_processes(j, {0, -1, 1}, 87).losses == wanted);
  j.given.nccl = false;
  j.given.cuda_ipc = true;
  CHECK(on_processes(j, {0, 1, -1}, 88).losses == wanted);
  j.given.cuda_ipc = false;
  j.given.dry_run = true;
  const auto held = [&] { return on_local_gpus(j, {0, 1, 2}, 90).dry_run[1].held_bytes; };
  const auto half = held();
  j.given.boundaries = "fp32";
  CHECK(half < held());
  j.given.dry_run = false;
  CHECK(on_local_gpus(j, {0, 1, 2}, 91).losses == wide.losses);
  j.given.boundaries.reset();
  j.plan->plan.setting.precision = "bf16";
  expect_close(on_processes(j, {0, -1, 1}, 89).losses, wide.losses);  // a host without GPUs hands on fp32
}

TEST_CASE("bf16 numbers between layers are those of a plan in bf16, but for autocast, and go between cut stages, too") {
  auto j = small_job();
  j.config.sequence = 8;
  auto& p = j.plan->plan;
  p.pipelines[0].stages[0].degrees = {.context = 2};
  p.pipelines[0].stages[1].degrees = {.data = 2};
  const std::vector<int> gpus{0, 1, 2, 3};
  const auto wide = on_local_gpus(j, gpus, 92).losses, wanted = losses_of_own_trainer(j, gpus, 93);
  p.setting.precision = "bf16";
  CHECK(on_local_gpus(j, gpus, 94).losses == wanted);
  CHECK(on_local_gpus(j, {0, -1, 1, -1}, 95).losses == wanted);
  j.given.nccl = j.given.sums_in_order = true;
  CHECK(on_processes(j, gpus, 96).losses == wanted);
  j.given.nccl = j.given.sums_in_order = false;
  j.given.boundaries = "fp32";
  CHECK(on_local_gpus(j, gpus, 97).losses == wide);
  j.given.boundaries.reset();
  p.setting.stack = find_training_stack("ddp");
  REQUIRE(p.setting.stack);
  CHECK(on_local_gpus(j, gpus, 98).losses == wide);
  p.setting.stack.reset();
  p.pipelines[0].stages[0].degrees = {.tensor = 2};
  p.pipelines[0].stages[1].degrees = {};
  const auto cut = on_local_gpus(j, {0, 1, 2}, 99).losses;
  expect_close(cut, wide, 2e-2);
  CHECK(cut != wide);
  p.pipelines[0].stages[0].degrees = {};
  j.config.hidden = 15;  // no whole number of floats
  j.config.heads = 3;
  const auto odd = on_local_gpus(j, {0, 1}, 100).losses;
  j.given.boundaries = "fp32";
  CHECK(odd == on_local_gpus(j, {0, 1}, 101).losses);
}

TEST_CASE("hosts go on from the checkpoints of GPUs, and the other way round") {
  auto j = small_job();
  j.given.optimizer = "adamw";
  j.given.learning_rate = 1e-3;
  const auto wanted = of(on_local_gpus(j, {0, 1}, 7));
  const auto then = [&](const train::job::result& r) {
    CHECK(r.resumed == std::int64_t{2});
    expect_close(of(r).losses, {wanted.losses.begin() + 2, wanted.losses.end()}, 1e-4);
  };
  const folder one("gpu-rank-test-gpus"), two("gpu-rank-test-hosts");
  j.given.checkpoint.folder = one.path.string();
  auto begun = j, rest = j;
  begun.given.steps = 2;
  rest.given.checkpoint.resume = true;
  (void)on_local_gpus(begun, {1, 0}, 8);
  auto bits = rest;
  std::filesystem::copy(one.path, two.path, std::filesystem::copy_options::recursive);
  bits.given.checkpoint.folder = two.path.string();
  const auto same = on_local_gpus(bits, {0, 1}, 9);
  CHECK(same.losses == std::vector<double>(wanted.losses.begin() + 2, wanted.losses.end()));
  then(on_processes(rest, {-1, -1}, 10));
  const folder three("gpu-rank-test-back");
  begun.given.checkpoint.folder = rest.given.checkpoint.folder = three.path.string();
  (void)on_processes(begun, {-1, -1}, 11);
  then(on_processes(rest, {0, 1}, 12));
}

TEST_CASE("what GPUs do not train is refused by name") {
  const auto refuses = [](const train::job& j, const std::string& text) {
    CHECK_THROWS_WITH_AS((void)on_local_gpus(j, {0, 1, 2}, 13), ("--device cuda: " + text + " on GPUs").c_str(), input_error);
  };
  auto cut = small_job();
  cut.config.sequence = 8;
  cut.plan->plan.pipelines[0].stages[0].degrees = {.tensor = 2};
  cut.given.graphs = true;
  refuses(cut, "stages that are cut along context or tensors are not captured in graphs");
  cut.plan->plan.pipelines[0].stages[0].degrees = {.context = 2};
  refuses(cut, "stages that are cut along context or tensors are not captured in graphs");
  auto experts = small_job(true);
  experts.config.experts = 2;
  experts.given.graphs = true;
  refuses(experts, "layers with experts, whose rows find their experts on the host in each step, are not captured in graphs");
}
