// SPDX-License-Identifier: Apache-2.0
// All commands, with a line each: for their own pages and for the driver, which starts them.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace command {

struct command_entry {
  std::string_view name, about;

  /// The program's own name.
  [[nodiscard]] std::string program() const { return (name.ends_with("-to-profile") ? "" : "hetsched-") + std::string(name); }
};

inline constexpr command_entry commands[] = {
    {"plan", "Cuts a model into pipeline stages over a mixed cluster, and says what the plan will do."},
    {"compare", "All planners on one input: what their plans take, what they prove, and how long they search."},
    {"simulate", "Plays one training iteration of a pipeline under a schedule and tells how long it takes."},
    {"predict", "Predicts how long operators take on a device, or an iteration of a plan on a cluster and what memory it takes."},
    {"cluster", "Writes a cluster.json of what launchers and drivers say of hosts, and marks what it had to guess."},
    {"calibrate", "Fits a device's few constants to operators that were measured on it."},
    {"reshard", "The ways to move a tensor [batch, sequence, hidden] between two stages, and what each takes."},
    {"spmd", "The cheapest program by which unlike devices compute a graph of operators together, with each one's share."},
    {"train", "Trains a small GPT as a plan says, on threads or on processes that Gloo connects."},
    {"generate", "Goes on with texts, by the small GPT that hetsched-train trains, on threads or on processes."},
    {"profile", "Times a small GPT's layers and the links between ranks, for hetsched-plan."},
    {"export", "Writes what other trainers, such as Megatron-LM, need to run a plan."},
    {"compare-timeline",
     "Compares a measured iteration with its prediction: makespan, period, bubble and overlap, stage by stage."},
    {"import-onnx", "Turns an ONNX model into a model.json of layers. Weights are not read; amounts are per sample, in 16 bits."},
    {"sailor-to-profile", "Turns layer times that Sailor measured, or a CSV of such, into a profile.json of replicas."},
    {"metis-to-profile", "Turns layer times that were measured for Metis into a profile.json of replicas."},
    {"galvatron-to-profile", "Turns layer times that Galvatron measured into a profile.json of replicas."},
};

/// What the program of that name does.
[[nodiscard]] inline std::string about(std::string_view program) {
  for (const auto& c : commands)
    if (c.program() == program) return std::string(c.about);
  throw std::logic_error("no command " + std::string(program));
}

}  // namespace command
