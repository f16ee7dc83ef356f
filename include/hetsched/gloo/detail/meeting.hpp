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

/// 16 letters for a name, the same from every compiler and library: the first of its SHA-256.
[[nodiscard]] std::string name_hash(const std::string& name);

/// The words of a file; none if it is not there.
[[nodiscard]] std::vector<std::string> words_of(const std::filesystem::path& path);

/// Agrees with all ranks on a folder that no earlier run has used, whatever such a run left behind and whoever comes first.
/// Rank 0 writes a fresh word; the others answer with it and a fresh word of their own, again whenever rank 0's changes. An
/// answer with rank 0's word is thus of this run, and so is, for each rank, a list of answers that has its own word. While they
/// wait, ranks show that they are there, so that two processes of one rank are known to all.
/// deadline_s is what `until` came from, for the message.
/// Requires: no other run of that name is meeting in the folder.
/// Throws: error that names all ranks that are missing, or says why one cannot come; input_error if ranks do not agree on how
/// many they are, or if two processes are of one rank.
[[nodiscard]] meeting meet_in_folder(const std::filesystem::path& folder, const process_place& place, const std::string& run,
                                     double deadline_s, std::chrono::steady_clock::time_point until);

/// Tells all that wait in the folder, or come there within `most`, why this rank cannot come: their meeting throws that. Returns
/// when all other ranks have been there, or such a note of their own.
/// Throws: error if the folder cannot be written.
void tell_folder(const std::filesystem::path& folder, const process_place& place, const std::string& run, const std::string& why,
                 std::chrono::milliseconds most);

}  // namespace hetsched::detail

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/detail/meeting.ipp>
#endif
