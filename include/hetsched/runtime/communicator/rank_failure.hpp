// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/runtime/communicator/communicator_test.cpp.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/schedule/action.hpp>

namespace hetsched {

/// What every rank has found from what all have told: they need no word of each other's failure, and can agree on more.
class agreed_error : public input_error {
 public:
  using input_error::input_error;
};

/// What keeps a rank from the next step.
struct rank_failure {
  int rank = 0;
  std::string why;
};

/// Who cannot take the next step, the first by rank; none: all can. All ranks call it between the same steps, with what keeps
/// them from it (an input that cannot be read, say), or an empty text. As they end together then, they can write a checkpoint
/// before, which they cannot once an exception has left one of them alone. The first 1,000 bytes of a text are told. Throws:
/// communication_error if a rank does not come in time. Example:
///   std::string wrong;
///   try {
///     inputs = next_batch();
///   } catch (const std::exception& e) {
///     wrong = e.what();
///   }
///   if (const auto failed = first_failure(comm, wrong, 30)) {
///     write_checkpoint_part(folder, trainer.committed_step(), comm.rank(), trainer.state(true));
///     ...
template <control_plane Communicator>
[[nodiscard]] std::optional<rank_failure> first_failure(Communicator& comm, std::string_view why, double deadline_s) {
  constexpr std::size_t most_bytes = 1000;
  why = why.substr(0, most_bytes);
  const std::vector<double> mine(why.begin(), why.end());
  std::vector<std::vector<double>> all;
  const auto result = detail::with_blame(comm, comm.gather(mine, all, deadline_in(deadline_s)));
  if (result != wait_result::progress)
    throw communication_error("rank " + std::to_string(comm.rank()) + ", between steps: " + std::string(comm.failure()),
                              {.from = -1, .to = comm.rank()}, no_microbatch, action{.microbatch = no_microbatch});
  for (int r = 0; r < comm.ranks(); ++r) {
    std::string text;
    for (const double c : at(all, r)) text += static_cast<char>(c);
    if (!text.empty()) return rank_failure{r, std::move(text)};
  }
  return std::nullopt;
}

}  // namespace hetsched
