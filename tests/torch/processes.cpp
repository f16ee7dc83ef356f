// SPDX-License-Identifier: Apache-2.0
// The small GPT of LibTorch's modules on processes, for processes.py: `processes gloo FOLDER`, or `processes mpi`, started by
// mpirun. Fifty steps under six schedules; the last line of the first rank is "N passed, N failed". Gloo is linked before
// LibTorch, which exports another one.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/gloo.hpp>
#include <hetsched/mpi.hpp>

#include "small_gpt.hpp"

using namespace small_gpt;

namespace {

constexpr int many = 50;

void train_all(hetsched::any_communicator<torch::Tensor> comm, const char* transport) {
  torch::set_num_threads(1);
  const int ranks = comm.ranks();
  const bool tells = comm.rank() == 0;
  const auto expected = tells ? losses_of_libtorch<torch::optim::AdamW>(adamw, many) : std::vector<double>();
  int passed = 0, failed = 0;
  const auto check = [&](bool holds, const std::string& what) {
    (holds ? passed : failed) += 1;
    if (!holds && tells) std::printf("FAILED: %s on %d processes: %s\n", transport, ranks, what.c_str());
  };
  if (tells) check(expected.back() < expected.front() / 2, "it learns");
  struct one {
    const char* name;
    hetsched::schedule order;
  };
  const one all[] = {{"gpipe", hetsched::gpipe(ranks, microbatches)},
                     {"1f1b", one_f_one_b(ranks)},
                     {"interleaved_1f1b", hetsched::interleaved_1f1b(ranks, 2, microbatches)},
                     {"looped_bfs", hetsched::looped_bfs(ranks, 2, microbatches)},
                     {"zb_h1", hetsched::zb_h1(ranks, microbatches)},
                     {"zb_v", hetsched::zb_v(ranks, microbatches)}};
  std::vector<double> first;
  for (const auto& [name, order] : all) {
    if (order.stages > layers) continue;
    auto trainer = hetsched::make_trainer<torch::Tensor>(hetsched::even_layout(layers, order, samples), make_layer, shape_after,
                                                         comm, hetsched::torch_optimizer<torch::optim::AdamW>{adamw});
    std::vector<double> losses;
    double apart = 0;
    for (int s = 0; s < many; ++s) {
      const auto b = numbers_of(s);
      losses.push_back(trainer.step(b.inputs, b.targets, hetsched::torch_loss(cross_entropy)).loss);
      if (tells) apart = std::max(apart, std::abs(losses.back() - expected[static_cast<std::size_t>(s)]));
    }
    if (first.empty()) first = losses;
    check(apart < 1e-6, std::string(name) + ": losses are " + std::to_string(apart) + " from LibTorch's");
    check(losses == first, std::string(name) + ": the bits");
    if (tells) std::printf("%s on %d processes, %s: %.1e from LibTorch's losses\n", transport, ranks, name, apart);
  }
  if (tells) std::printf("%d passed, %d failed\n", passed, failed);
}

}  // namespace

int main(int count, char** given) {
  const std::span<char*> arguments(given, static_cast<std::size_t>(count));
  if (count == 3 && std::string_view(arguments[1]) == "gloo") {
    hetsched::gloo_options options;
    options.rendezvous = "file:" + std::string(arguments[2]);
    hetsched::run_on_processes<torch::Tensor>(hetsched::place_from_environment(), options, [](auto& comm) {
      train_all(hetsched::any_communicator<torch::Tensor>(comm), "Gloo");
    });
    return 0;
  }
  if (count == 2 && std::string_view(arguments[1]) == "mpi") {
    hetsched::mpi_session mpi;
    hetsched::run_on_mpi<torch::Tensor>(mpi, {},
                                        [](auto& comm) { train_all(hetsched::any_communicator<torch::Tensor>(comm), "MPI"); });
    return 0;
  }
  return 2;
}
