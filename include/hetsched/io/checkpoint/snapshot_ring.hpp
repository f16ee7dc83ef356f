// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/core/state_slice.hpp>
#include <hetsched/io/checkpoint/checkpoint.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/communicator/rank_failure.hpp>

namespace hetsched {

/// Snapshots of a training in the memory of its ranks: each keeps its own part and that of the rank before it, the last one that
/// of the one before the first. Those that are left after a loss have all of the last snapshot between them, unless two
/// neighbours are lost. Parts are files in a folder of this rank alone, on a file system in memory; they end with this object.
/// Example, on every rank, with communicators that come and go:
///   snapshot_ring ring("/dev/shm/training-" + std::to_string(getpid()));
///   ring.keep(comm, step, trainer.state(true), 30);      // every few steps
///   if (const auto last = ring.find(next_comm, 30)) {    // after a loss, on those that are left and those that come
///     auto slices = trainer.state();
///     load_checkpoint(*last, slices);
///     trainer.state_loaded();
///   }
class snapshot_ring {
 public:
  /// `folder`: of this rank alone. Those beside it whose names begin alike, up to the last '-', and whose processes have ended
  /// without removing them, are removed. Throws: error if the folder cannot be made.
  explicit snapshot_ring(std::string folder);
  ~snapshot_ring() {
    remove_all();
    if (held_ >= 0) ::close(held_);
  }
  snapshot_ring(const snapshot_ring&) = delete;
  snapshot_ring& operator=(const snapshot_ring&) = delete;

  /// Takes one. All ranks call it between the same steps, each with its share of the state. The one before stays until all have
  /// this one. Throws: communication_error if a rank fails or is late; agreed_error, on all ranks, if one cannot write: the
  /// snapshot before stays then. Complexity: O(bytes of two parts).
  template <class Communicator>
  requires control_plane<Communicator> && byte_plane<Communicator>
  void keep(Communicator& comm, std::int64_t step, std::span<const state_slice> slices, double deadline_s,
            const std::map<std::string, std::string>& info = {}) {
    kept next{.step = step, .parts = comm.ranks(), .held = {comm.rank()}, .info = info};
    if (newest_ && newest_->step == step) newest_.reset();
    std::vector<std::byte> mine, theirs;
    together(comm, next, deadline_s, [&] {
      std::filesystem::remove_all(path_of(next));
      write_checkpoint_part(folder_, step, comm.rank(), slices);
      if (comm.ranks() > 1) mine = read_part(next, comm.rank());
    });
    if (comm.ranks() > 1) {
      const int after = (comm.rank() + 1) % comm.ranks(), before = (comm.rank() + comm.ranks() - 1) % comm.ranks();
      const auto sizes = told(comm, {static_cast<double>(mine.size())}, deadline_s);
      theirs.resize(size_of(at(sizes, before)[0]));
      exchange(comm, {{after, &mine}}, {{before, &theirs}}, deadline_s);
      together(comm, next, deadline_s, [&] { write_part(next, before, theirs); });
    }
    if (newest_) std::filesystem::remove_all(path_of(*newest_));
    std::filesystem::remove_all(folder_ + "/whole");
    newest_ = std::move(next);
  }

  /// The newest snapshot that the ranks have all parts of between them, whole on each of them when it returns: those that have a
  /// part send it to those that do not. None: there is none. All ranks call it. Throws: communication_error if a rank fails or is
  /// late, and as commit_checkpoint. Complexity: O(bytes of the snapshot) on each rank.
  template <class Communicator>
  requires control_plane<Communicator> && byte_plane<Communicator>
  [[nodiscard]] std::optional<checkpoint> find(Communicator& comm, double deadline_s) {
    std::vector<double> mine;
    if (newest_) {
      mine = {static_cast<double>(newest_->step), static_cast<double>(newest_->parts)};
      for (const int part : newest_->held) mine.push_back(part);
    }
    const auto all = told(comm, mine, deadline_s);
    // Those that were lost while a snapshot was taken may have left ranks with different ones.
    std::map<std::pair<std::int64_t, int>, std::map<int, std::vector<int>>> holders;  // by step and parts: of each part
    for (int r = 0; r < comm.ranks(); ++r)
      for (std::size_t k = 2; k < at(all, r).size(); ++k)
        holders[{static_cast<std::int64_t>(at(all, r)[0]), static_cast<int>(at(all, r)[1])}][static_cast<int>(at(all, r)[k])]
            .push_back(r);
    auto best = holders.end();
    for (auto i = holders.begin(); i != holders.end(); ++i)
      if (static_cast<int>(i->second.size()) == i->first.second) best = i;
    if (best == holders.end()) return std::nullopt;
    const auto [step, parts] = best->first;

    const bool has_some = newest_ && newest_->step == step && newest_->parts == parts;
    kept whole = has_some ? *newest_ : kept{.step = step, .parts = parts, .held = {}, .info = {}};
    if (newest_ && !has_some) std::filesystem::remove_all(path_of(*newest_));
    for (const auto& [part, by] : best->second) {
      const int from = by.front();
      const auto has = [&](int rank) { return std::find(by.begin(), by.end(), rank) != by.end(); };
      std::vector<std::byte> bytes;
      if (from == comm.rank()) bytes = read_part(whole, part);
      const auto sizes = told(comm, {static_cast<double>(bytes.size())}, deadline_s);
      std::vector<std::pair<int, const std::vector<std::byte>*>> out;
      std::vector<std::pair<int, std::vector<std::byte>*>> in;
      if (from == comm.rank()) {
        for (int r = 0; r < comm.ranks(); ++r)
          if (!has(r)) out.emplace_back(r, &bytes);
      } else if (!has(comm.rank())) {
        bytes.resize(size_of(at(sizes, from)[0]));
        in.emplace_back(from, &bytes);
      }
      exchange(comm, out, in, deadline_s);
      if (!in.empty()) write_part(whole, part, bytes);
    }
    // Committed are second names of the files: a rank that comes later may need them as they are.
    const auto second = folder_ + "/whole";
    std::filesystem::remove_all(second);
    const auto there = detail::step_path(second, step) + std::string(detail::writing_suffix);
    detail::checkpoint_files::make_folder(there);
    for (const auto& file : std::filesystem::directory_iterator(path_of(whole)))
      std::filesystem::create_hard_link(file.path(), std::filesystem::path(there) / file.path().filename());
    commit_checkpoint(second, step, parts, whole.info);
    newest_ = std::move(whole);
    return open_checkpoint(detail::step_path(second, step));
  }

  /// The step of the last snapshot that this rank has a part of.
  [[nodiscard]] std::optional<std::int64_t> step() const { return newest_ ? std::optional(newest_->step) : std::nullopt; }

 private:
  struct kept {
    std::int64_t step = 0;
    int parts = 0;
    std::set<int> held;
    std::map<std::string, std::string> info;
  };

  /// Runs work on all ranks; throws agreed_error on all if that of one fails, and removes what there is of the snapshot.
  template <class Communicator, class Work>
  void together(Communicator& comm, const kept& next, double deadline_s, Work work) {
    std::string why;
    try {
      work();
    } catch (const std::exception& e) {
      why = e.what();
    }
    const auto failed = first_failure(comm, why, deadline_s);
    if (!failed) return;
    std::error_code none;
    std::filesystem::remove_all(path_of(next), none);
    throw agreed_error("no snapshot of step " + std::to_string(next.step) + ", as rank " + std::to_string(failed->rank) +
                       " cannot write: " + failed->why);
  }
  static std::size_t size_of(double told) { return static_cast<std::size_t>(told); }
  /// A folder, locked as long as this is open and the process lives; -1: it is locked already.
  static int hold(const std::string& folder) {
    const int file = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0 || ::flock(file, LOCK_EX | LOCK_NB) == 0) return file;
    ::close(file);
    return -1;
  }
  void remove_all() const {
    std::error_code none;
    std::filesystem::remove_all(folder_, none);
  }
  [[nodiscard]] std::string path_of(const kept& k) const {
    return detail::step_path(folder_, k.step) + std::string(detail::writing_suffix);
  }

  /// A part as one run of bytes: the notes, its index, and its data, each behind its length.
  [[nodiscard]] std::vector<std::byte> read_part(const kept& k, int part) const;
  void write_part(kept& k, int part, std::span<const std::byte> bytes) const;
  static std::vector<std::byte> read_all(const std::string& path) {
    std::ifstream in(path, std::ios::binary | std::ios::ate);
    std::vector<std::byte> bytes(in ? static_cast<std::size_t>(in.tellg()) : 0);
    in.seekg(0);
    if (!in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size())))
      throw error(path + ": cannot be read");
    return bytes;
  }
  static void write_all(const std::string& path, std::span<const std::byte> bytes) {
    detail::checkpoint_files::create(path);
    detail::checkpoint_files::append(path, bytes);
  }

  template <class Communicator>
  static std::vector<std::vector<double>> told(Communicator& comm, const std::vector<double>& mine, double deadline_s) {
    std::vector<std::vector<double>> all;
    const auto result = detail::with_blame(comm, comm.gather(mine, all, deadline_in(deadline_s)));
    if (result != wait_result::progress) fail(comm, {}, "");
    return all;
  }
  template <class Communicator>
  [[noreturn]] static void fail(Communicator& comm, const edge& where, const std::string& what) {
    const std::string text = "rank " + std::to_string(comm.rank()) + ", snapshots" + what + ": " + std::string(comm.failure());
    comm.abort(text);
    throw communication_error(text, where, no_microbatch, {});
  }
  template <class Communicator>
  void exchange(Communicator& comm, const std::vector<std::pair<int, const std::vector<std::byte>*>>& out,
                const std::vector<std::pair<int, std::vector<std::byte>*>>& in, double deadline_s) {
    // A channel of its own for each: ranks may have taken part in a different number of them.
    const auto where = [&](int from, int to) {
      return edge{.from = from, .to = to, .what = payload::collective, .direction = 0, .stage = -1};
    };
    const stamp what{.step = 0, .microbatch = 0, .what = payload::collective, .direction = 0, .stage = -1};
    std::vector<typename Communicator::operation> sends(out.size()), receives(in.size());
    for (std::size_t k = 0; k < in.size(); ++k)
      comm.post_receive_bytes(comm.open(where(in[k].first, comm.rank())), what, std::span(*in[k].second), receives[k]);
    for (std::size_t k = 0; k < out.size(); ++k)
      comm.post_send_bytes(comm.open(where(comm.rank(), out[k].first)), what, std::span(*out[k].second), sends[k]);
    const auto until = deadline_in(deadline_s);
    const auto finish = [&](typename Communicator::operation& op, const edge& e, bool of_send) {
      while (!comm.poll(op))
        if (detail::with_blame(comm, comm.wait(until, of_send)) != wait_result::progress && !comm.poll(op))
          fail(comm, e, ", " + to_text(e));
    };
    for (std::size_t k = 0; k < in.size(); ++k) finish(receives[k], where(in[k].first, comm.rank()), false);
    for (std::size_t k = 0; k < out.size(); ++k) finish(sends[k], where(comm.rank(), out[k].first), true);
  }

  std::string folder_;
  int held_ = -1;
  std::optional<kept> newest_;
};

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/checkpoint/snapshot_ring.ipp>
#endif
