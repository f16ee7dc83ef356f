// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <system_error>
#include <thread>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/printable.hpp>
#include <hetsched/gloo/detail/meeting.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::string fresh_nonce() {
  std::random_device random;
  std::ostringstream text;
  text << std::hex;
  for (int i = 0; i < 4; ++i) text << random() << (i < 3 ? "-" : "");
  return text.str();
}

HETSCHED_INLINE std::vector<std::string> words_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

/// Puts a file in the place of another at once, so that no reader sees a part of it.
inline void replace_file(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path part = path.string() + "." + fresh_nonce();
  std::ofstream out(part);
  out << text << '\n';
  out.close();
  std::error_code problem;
  if (out) std::filesystem::rename(part, path, problem);
  if (!out || problem) {
    std::error_code ignored;
    std::filesystem::remove(part, ignored);
    throw error("cannot write " + path.string());
  }
}

HETSCHED_INLINE meeting meet_in_folder(const std::filesystem::path& folder, const process_place& place, const std::string& run,
                                       double deadline_s, std::chrono::steady_clock::time_point until) {
  namespace fs = std::filesystem;
  std::ostringstream hashed;
  hashed << "meeting-" << std::hex << std::hash<std::string>{}(run) << '-';
  const std::string prefix = hashed.str();
  const auto file = [&](int rank) { return folder / (prefix + std::to_string(rank)); };
  const auto run_folder = [&](const std::string& id) { return folder / (prefix + "run-" + id); };
  const std::string nonce = fresh_nonce(), count = std::to_string(place.ranks);
  // The ranks that have not answered with rank 0's word.
  const auto missing_by = [&](const std::string& word) {
    std::vector<int> missing;
    for (int r = 1; r < place.ranks; ++r) {
      const auto answer = words_of(file(r));
      if (answer.size() != 3 || answer[0] != word) missing.push_back(r);
    }
    return missing;
  };
  const auto late = [&](const std::vector<int>& missing) {
    std::ostringstream text;
    text << (missing.size() == 1 ? "rank " : "ranks ");
    for (std::size_t i = 0; i < missing.size(); ++i) text << (i > 0 ? ", " : "") << missing[i];
    text << (missing.size() == 1 ? " has" : " have") << " not come to "
         << (run.find_first_not_of('.') == std::string::npos ? "the run without a name" : "run \"" + run + '"')
         << " in the rendezvous file:" << folder.string() << " within " << deadline_s << " s";
    return error(text.str());
  };
  const auto disagree = [&](int rank, const std::string& theirs) {
    return input_error("rank " + std::to_string(rank) + " is one of " + printable(theirs) + " ranks, rank " +
                       std::to_string(place.rank) + " one of " + count);
  };
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };

  if (place.rank == 0) {
    std::error_code ignored;
    std::vector<fs::path> old;
    for (const auto& entry : fs::directory_iterator(folder, ignored))
      if (entry.path().filename().string().starts_with(prefix + "run-")) old.push_back(entry.path());
    for (const auto& path : old) fs::remove_all(path, ignored);
    std::error_code problem;
    fs::create_directories(run_folder(nonce), problem);
    if (!problem) fs::permissions(run_folder(nonce), fs::perms::owner_all, problem);  // who reads what is in it can be a rank
    if (problem) throw error("cannot make " + run_folder(nonce).string() + ": " + problem.message());
    replace_file(file(0), nonce);
    while (true) {
      const auto missing = missing_by(nonce);
      std::string list = nonce + ' ' + count;
      for (int r = 1; r < place.ranks; ++r) {
        const auto answer = words_of(file(r));  // rank 0's word, the own one, the number of ranks
        if (answer.size() != 3 || answer[0] != nonce) continue;
        list += ' ' + answer[1];
        if (answer[2] == count) continue;
        replace_file(file(0), list);
        throw disagree(r, answer[2]);
      }
      if (missing.empty()) {
        replace_file(file(0), list);
        return {run_folder(nonce), file(0)};
      }
      if (std::chrono::steady_clock::now() > until) throw late(missing);
      pause();
    }
  }
  for (std::string answered;; pause()) {
    const auto words = words_of(file(0));  // rank 0's word, then the number of ranks and all answers
    if (std::find(words.begin(), words.end(), nonce) != words.end()) {
      if (words[1] != count) throw disagree(0, words[1]);
      return {run_folder(words[0]), file(place.rank)};
    }
    if (!words.empty() && words[0] != answered) {
      answered = words[0];
      replace_file(file(place.rank), answered + ' ' + nonce + ' ' + count);
    }
    if (std::chrono::steady_clock::now() > until) {
      const auto missing = missing_by(answered);
      throw late(missing.empty() || answered.empty() ? std::vector<int>{0} : missing);
    }
  }
}

}  // namespace hetsched::detail
