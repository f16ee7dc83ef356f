// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include <hetsched/gloo/process_place.hpp>

namespace hetsched::detail {

/// Where the ranks of one run, and of no earlier one, leave their addresses.
struct meeting {
  std::filesystem::path folder;  ///< of this run alone
  std::filesystem::path own;     ///< what this rank left outside of it
};

[[nodiscard]] std::string fresh_nonce();

/// The words of a file; none if it is not there.
[[nodiscard]] std::vector<std::string> words_of(const std::filesystem::path& path);

/// Agrees with all ranks on a folder that no earlier run has used, whatever such a run left behind and whoever comes first.
/// Rank 0 writes a fresh word; the others answer with it and a fresh word of their own, again whenever rank 0's changes. An
/// answer with rank 0's word is thus of this run, and so is, for each rank, a list of answers that has its own word. While they
/// wait, ranks show that they are there, so that two processes of one rank are known to all.
/// deadline_s is what `until` came from, for the message.
/// Requires: no other run of that name is meeting in the folder.
/// Throws: error that names all ranks that are missing, input_error if ranks do not agree on how many they are, or if two
/// processes are of one rank.
[[nodiscard]] meeting meet_in_folder(const std::filesystem::path& folder, const process_place& place, const std::string& run,
                                     double deadline_s, std::chrono::steady_clock::time_point until);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/detail/meeting.ipp>
#endif
