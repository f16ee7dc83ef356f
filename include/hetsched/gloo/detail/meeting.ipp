// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/printable.hpp>
#include <hetsched/core/sha256.hpp>
#include <hetsched/gloo/detail/meeting.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::string fresh_nonce() {
  std::random_device random;
  std::ostringstream text;
  text << std::hex;
  for (int i = 0; i < 4; ++i) text << random() << (i < 3 ? "-" : "");
  return text.str();
}

HETSCHED_INLINE std::string name_hash(const std::string& name) {
  sha256 hash;
  hash.add(name);
  const auto digest = hash.digest();
  std::string text;
  for (std::size_t i = 0; i < 8; ++i)
    for (const int shift : {4, 0}) text += "0123456789abcdef"[std::to_integer<unsigned>(digest[i]) >> shift & 15u];
  return text;
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
  errno = 0;
  std::ofstream out(part);
  out << text << '\n';
  out.close();
  std::error_code problem;
  if (out)
    std::filesystem::rename(part, path, problem);
  else
    problem.assign(errno, std::generic_category());
  if (!out || problem) {
    std::error_code ignored;
    std::filesystem::remove(part, ignored);
    throw error("cannot write " + path.string() + (problem ? ": " + problem.message() : ""));
  }
}

/// What the names of a run's files begin with.
[[nodiscard]] inline std::string meeting_prefix(const std::string& run) { return "meeting-" + name_hash(run) + '-'; }

/// A file that tells who waits as which rank, and is renamed again and again while they do: who was killed is told from who is
/// there, whatever clocks say.
class attendance {
 public:
  using clock = std::chrono::steady_clock;

  /// why_not: what keeps this rank from coming; empty: it comes.
  attendance(std::filesystem::path folder, const std::string& run, const process_place& place, std::string nonce,
             const std::string& why_not = "")
      : folder_(std::move(folder)),
        prefix_(meeting_prefix(run) + "here-"),
        nonce_(std::move(nonce)),
        rank_(place.rank),
        ranks_(place.ranks) {
    char host[256] = {};
    (void)gethostname(host, sizeof host - 1);
    own_ = why_not.empty() ? "process " + std::to_string(getpid()) + " on " + host : failed_ + why_not;
    replace_file(at(0), own_);
  }
  attendance(const attendance&) = delete;
  attendance& operator=(const attendance&) = delete;
  ~attendance() {
    std::error_code ignored;
    std::filesystem::remove(at(beat_), ignored);
    for (const auto& [who, other] : others_)
      if (other.rank == rank_ && !other.there) std::filesystem::remove(other.path, ignored);  // of a process that was killed
  }

  /// To be called again and again. Throws: error if a rank says why it cannot come, input_error if two processes are of one rank;
  /// `where` is for their texts.
  void look(const std::string& where) {
    if (clock::now() < next_) return;
    show();
    std::map<int, std::vector<std::string>> there;
    there[rank_].push_back(own_);
    read_folder();
    for (auto& [who, other] : others_) {
      if (!other.there || !other.is_new) continue;
      if (other.says.empty()) other.says = text_of(other.path);
      if (other.says.empty()) continue;  // it had another name by then: it is read at the next look
      there[other.rank].push_back(other.says);
      if (!other.says.starts_with(failed_)) continue;
      show_on();
      throw error("rank " + std::to_string(other.rank) + " cannot come to " + where + ": " +
                  printable(other.says.substr(failed_.size())));
    }
    for (const auto& [rank, processes] : there)
      if (processes.size() > 1) tell(rank, processes, where);
  }

  /// Shows that this rank is here until all others have been, and for a moment more; no longer than `most`.
  void stay(std::chrono::milliseconds most) {
    for (const auto until = clock::now() + most; clock::now() < until; std::this_thread::sleep_for(every())) {
      show();
      read_folder();
      std::set<int> came;
      for (const auto& [who, other] : others_)
        if (other.there) came.insert(other.rank);
      came.erase(rank_);
      if (came.size() + 1 >= as_size(ranks_)) return show_on();
    }
  }

 private:
  struct seen {
    int rank;
    std::int64_t beat;
    std::filesystem::path path;
    bool there = false;   ///< seen to be renamed
    bool is_new = false;  ///< seen at the last look
    std::string says{};
  };

  void read_folder() {
    for (auto& [who, other] : others_) other.is_new = false;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder_, ignored)) {
      const auto name = entry.path().filename().string();
      if (!name.starts_with(prefix_)) continue;
      int rank = -1;
      std::int64_t beat = -1;
      char dash = 0, second = 0;
      std::string who;
      std::istringstream(name.substr(prefix_.size())) >> rank >> dash >> beat >> second >> who;
      if (second != '-' || who == nonce_ || who.find('.') != std::string::npos) continue;  // a dot: not whole yet
      auto& other = others_.try_emplace(who, seen{rank, beat, entry.path()}).first->second;
      other.there = other.there || other.beat != beat;
      other.is_new = true;
      other.path = entry.path();
    }
  }
  /// All of a file in one line; empty if it is not there (any more).
  [[nodiscard]] static std::string text_of(const std::filesystem::path& path) {
    std::string text;
    for (const auto& word : words_of(path)) text += (text.empty() ? "" : " ") + word;
    return text;
  }
  /// So that others see it, too.
  void show_on(int times = 4) {
    for (int more = 0; more < times; ++more) {
      std::this_thread::sleep_for(every());
      show();
    }
  }

  [[nodiscard]] std::filesystem::path at(std::int64_t beat) const {
    return folder_ / (prefix_ + std::to_string(rank_) + '-' + std::to_string(beat) + '-' + nonce_);
  }
  void show() {
    std::error_code problem;
    std::filesystem::rename(at(beat_), at(beat_ + 1), problem);
    if (problem) throw error("cannot rename " + at(beat_).string() + ": " + problem.message());
    ++beat_;
    next_ = clock::now() + every();
  }
  // Folders with many ranks are read less often.
  [[nodiscard]] std::chrono::milliseconds every() const { return std::chrono::milliseconds(50 + 2 * ranks_); }

  [[noreturn]] void tell(int rank, const std::vector<std::string>& processes, const std::string& where) {
    show_on(16);  // the other may be held up, and would wait for good if it missed this one
    throw input_error("two processes say that they are rank " + std::to_string(rank) + " of " + std::to_string(ranks_) + " in " +
                      where + ": " + printable(processes[0]) + " and " + printable(processes[1]) +
                      "; each rank is one process's");
  }

  static inline const std::string failed_ = "failed: ";
  std::filesystem::path folder_;
  std::string prefix_, nonce_, own_;
  int rank_, ranks_;
  std::int64_t beat_ = 0;
  clock::time_point next_{};
  std::map<std::string, seen> others_;
};

HETSCHED_INLINE meeting meet_in_folder(const std::filesystem::path& folder, const process_place& place, const std::string& run,
                                       double deadline_s, std::chrono::steady_clock::time_point until) {
  namespace fs = std::filesystem;
  const std::string prefix = meeting_prefix(run);
  const auto file = [&](int rank) { return folder / (prefix + std::to_string(rank)); };
  const auto run_folder = [&](const std::string& id) { return folder / (prefix + "run-" + id); };
  const std::string nonce = fresh_nonce(), count = std::to_string(place.ranks);
  const std::string where = (run.find_first_not_of('.') == std::string::npos ? "the run without a name" : "run \"" + run + '"') +
                            " in the rendezvous file:" + folder.string();
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
    text << (missing.size() == 1 ? " has" : " have") << " not come to " << where << " within " << deadline_s << " s";
    return error(text.str());
  };
  const auto taken = [&] {
    return input_error("another process says that it is rank " + std::to_string(place.rank) + " of " + count + " in " + where);
  };
  const auto disagree = [&](int rank, const std::string& theirs) {
    return input_error("rank " + std::to_string(rank) + " is one of " + printable(theirs) + " ranks, rank " +
                       std::to_string(place.rank) + " one of " + count);
  };
  attendance here(folder, run, place, nonce);
  const auto pause = [&] {
    here.look(where);
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + place.ranks / 16));
  };

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
      const auto mine = words_of(file(0));
      const bool replaced = !mine.empty() && mine[0] != nonce;
      if (missing.empty() && !replaced) {
        replace_file(file(0), list);
        return {run_folder(nonce), file(0)};
      }
      if (std::chrono::steady_clock::now() > until) throw replaced ? static_cast<error>(taken()) : late(missing);
      pause();
    }
  }
  for (std::string answered, joined;; pause()) {
    const auto words = words_of(file(0));  // rank 0's word, then the number of ranks and all answers
    if (std::find(words.begin(), words.end(), nonce) != words.end()) {
      if (words[1] != count) throw disagree(0, words[1]);
      return {run_folder(words[0]), file(place.rank)};
    }
    if (words.size() == as_size(place.ranks) + 1 && words[0] == joined) throw taken();
    if (words.size() == 1 && words[0] == answered) joined = answered;  // rank 0 waits, for this answer too
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

HETSCHED_INLINE void tell_folder(const std::filesystem::path& folder, const process_place& place, const std::string& run,
                                 const std::string& why, std::chrono::milliseconds most) {
  attendance(folder, run, place, fresh_nonce(), why).stay(most);
}

}  // namespace hetsched::detail
