// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hetsched/core/checksum.hpp>
#include <hetsched/core/detail/state_rows.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/state_slice.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/io/checkpoint/checkpoint_manifest.hpp>
#include <hetsched/io/checkpoint/detail/checkpoint_files.hpp>

namespace hetsched {

namespace detail {

inline constexpr std::string_view writing_suffix = ".writing", replaced_suffix = ".replaced", removing_suffix = ".removing";

[[nodiscard]] inline std::string step_name(std::int64_t step) {
  auto digits = std::to_string(step);
  if (digits.size() < 6) digits.insert(0, 6 - digits.size(), '0');
  return "step-" + digits;
}
[[nodiscard]] inline std::string step_path(const std::string& folder, std::int64_t step) {
  return folder + '/' + step_name(step);
}
[[nodiscard]] inline std::string part_path(const std::string& path, int part) { return path + "/part-" + std::to_string(part); }

/// A folder of a checkpoint, by its name.
struct step_folder {
  std::int64_t step = 0;
  std::string name, suffix;
};

/// The folders of checkpoints, whole or not; newest step first, of one step the committed one first.
[[nodiscard]] std::vector<step_folder> list_steps(const std::string& folder);

template <class Files>
void write_whole(Files& files, const std::string& path, std::string_view text) {
  files.create(path);
  files.append(path, std::as_bytes(std::span(text)));
  files.sync(path);
}

/// The index of a part, as JSON.
[[nodiscard]] std::string part_text(std::int64_t step, const std::vector<stored_slice>& written);

/// The manifest of a checkpoint, as JSON: sizes are those of its parts.
[[nodiscard]] std::string manifest_text(std::int64_t step, const std::map<std::string, std::string>& info,
                                        const std::vector<bytes_t>& sizes, const std::vector<stored_slice>& slices);

template <class Files>
void write_part(Files& files, const std::string& folder, std::int64_t step, int part, std::span<const state_slice> slices) {
  if (step < 0 || step > max_checkpoint_step || part < 0 || part >= max_checkpoint_parts)
    throw input_error("a checkpoint has no step " + std::to_string(step) + ", part " + std::to_string(part));
  const auto path = step_path(folder, step) + std::string(writing_suffix);
  const auto data = part_path(path, part) + ".bin";
  files.make_folder(path);
  files.create(data);
  bytes_t offset = 0;
  std::vector<stored_slice> written;
  std::vector<std::byte> packed;
  for (const auto& s : slices) {
    const auto size = element_size(s);
    const auto rows = rows_held(s, size);
    std::span<const std::byte> bytes = s.bytes;
    if (rows.held > rows.of.length) {
      packed.clear();
      pack(s, rows, size, packed);
      bytes = packed;
    }
    written.push_back({.layer = s.layer,
                       .name = s.name,
                       .element = s.element,
                       .shape = s.shape,
                       .first = s.first,
                       .count = rows.of.length * s.rows,
                       .part = part,
                       .offset = offset,
                       .checksum = crc64(bytes),
                       .rows = s.rows,
                       .apart = s.rows > 1 ? s.apart : 0,
                       .own_name = s.own_name});
    if (!bytes.empty()) files.append(data, bytes);
    offset += static_cast<bytes_t>(bytes.size());
  }
  files.sync(data);
  write_whole(files, part_path(path, part) + ".json", part_text(step, written));
}

/// The slices of a part that is not committed yet.
[[nodiscard]] std::vector<stored_slice> read_part(const std::string& path, std::int64_t step, int part);

template <class Files>
void commit(Files& files, const std::string& folder, std::int64_t step, int parts,
            const std::map<std::string, std::string>& info) {
  const auto path = step_path(folder, step), writing = path + std::string(writing_suffix);
  std::vector<stored_slice> slices;
  std::vector<bytes_t> sizes;
  for (int part = 0; part < parts; ++part) {
    auto found = read_part(writing, step, part);
    bytes_t bytes = 0;
    for (const auto& s : found) bytes += static_cast<bytes_t>(s.count * element_bytes(s.element));
    sizes.push_back(bytes);
    slices.insert(slices.end(), found.begin(), found.end());
  }
  if (const auto fault = coverage_fault(slices); !fault.empty())
    throw input_error("checkpoint of step " + std::to_string(step) + ": " + fault);
  write_whole(files, writing + "/manifest.json", manifest_text(step, info, sizes, slices));
  std::vector<std::string> left_over;  // indexes, and what an earlier attempt of more ranks has left
  for (const auto& entry : std::filesystem::directory_iterator(writing)) {
    const auto name = entry.path().filename().string();
    bool needed = name == "manifest.json";
    for (int part = 0; part < parts && !needed; ++part) needed = name == "part-" + std::to_string(part) + ".bin";
    if (!needed) left_over.push_back(entry.path().string());
  }
  for (const auto& file : left_over) files.remove(file);
  files.sync(writing);
  // A folder cannot be renamed onto a full one: an older checkpoint of this step makes way, and counts until the new one is
  // there.
  const auto replaced = path + std::string(replaced_suffix);
  if (std::filesystem::exists(path)) {
    if (std::filesystem::exists(replaced)) files.remove(replaced);
    files.rename(path, replaced);
  }
  files.rename(writing, path);
  files.sync(folder);
  if (std::filesystem::exists(replaced)) files.remove(replaced);
}

}  // namespace detail

/// Writes a rank's share of a checkpoint, FOLDER/step-000120.writing/part-N. Nobody reads it before commit_checkpoint.
/// `part`: each rank's own, from 0 to the number of parts less one.
/// Requires: all ranks see the same folder.
/// Throws: input_error for slices that do not lie in their tensors, error if it cannot be written.
inline void write_checkpoint_part(const std::string& folder, std::int64_t step, int part, std::span<const state_slice> slices) {
  detail::checkpoint_files files;
  detail::write_part(files, folder, step, part, slices);
}

/// Makes a checkpoint, FOLDER/step-000120, of the parts that all ranks have written. It is there whole or not at all,
/// whenever the machine stops. An older one of the same step is replaced.
/// Requires: one rank calls it, after all have written.
/// Throws: input_error unless the parts hold every tensor exactly once, error if it cannot be written.
/// Complexity: O(slices).
/// Example:
///   write_checkpoint_part("state", step, comm.rank(), trainer.state(true));
///   std::vector<std::vector<double>> all;
///   const auto written = comm.gather({}, all, deadline_in(600));  // on every rank
///   if (written == wait_result::progress && comm.rank() == 0) commit_checkpoint("state", step, comm.ranks());
inline void commit_checkpoint(const std::string& folder, std::int64_t step, int parts,
                              const std::map<std::string, std::string>& info = {}) {
  detail::checkpoint_files files;
  detail::commit(files, folder, step, parts, info);
}

/// Reads the manifest of the checkpoint in a folder, and checks that its parts are there in full size. verify_checkpoint and
/// load_checkpoint look into them.
/// Throws: file_error.
/// Complexity: O(n log n) for n slices.
[[nodiscard]] checkpoint open_checkpoint(const std::string& path);

/// Reads all of a checkpoint. alive(), if it is given, is called after each slice: reading takes as long as the disk does.
/// Throws: file_error unless every bit is as written, and what alive throws.
void verify_checkpoint(const checkpoint& c, const std::function<void()>& alive = {});

/// A search's result.
struct found_checkpoint {
  std::optional<checkpoint> newest;  ///< that is whole; none if none is
  std::vector<std::string> damaged;  ///< what is wrong with newer ones, newest first
};

/// The newest whole checkpoint below a folder; a folder that does not exist holds none. Reads all of it, and of damaged newer
/// ones; alive as of verify_checkpoint.
[[nodiscard]] found_checkpoint find_checkpoint(const std::string& folder, const std::function<void()>& alive = {});

struct load_options {
  /// Checkpoint and slices are of the same tensors. If not so: slices of tensors that it lacks stay as they are, and tensors of
  /// which there are no slices are left out.
  bool strict = true;
  std::function<void()> alive = {};  ///< as of verify_checkpoint
};

/// Tensors that only one side has, as "layer 3, parameter.0", behind which stands what the layer calls it, if it does.
struct unmatched_tensors {
  std::vector<std::string> missing;    ///< in the checkpoint
  std::vector<std::string> left_over;  ///< in it, but in no slice
};

/// Fills slices, which may be cut in any way, with what a checkpoint holds of them. Checksums are verified. A slice without
/// elements says that its tensor is part of the training, on other ranks: trainer.state() lists all that there are. Where layers
/// have names of their own on both sides, tensors are known by these, whatever their numbers; else by their numbers.
/// Returns: what does not match; nothing if it is strict.
/// Throws: file_error if it has a tensor of another shape or element, or is damaged; if it is strict, before anything is filled
/// and with all that does not match, also if it lacks a tensor or has one that is in no slice. Slices may else be filled in part.
/// Complexity: O(n log n + rows) for n slices, and reads only what it needs.
/// Example:
///   const auto found = find_checkpoint("state");
///   if (found.newest) {
///     auto slices = trainer.state();
///     load_checkpoint(*found.newest, slices);
///     trainer.state_loaded();
///     trainer.set_committed_step(found.newest->step);
///   }
unmatched_tensors load_checkpoint(const checkpoint& from, std::span<state_slice> wanted, const load_options& options = {});

/// Removes all but the newest `keep` checkpoints, and what writers that were stopped have left of steps up to the newest one.
/// Checkpoints that cannot be opened do not count; they go with those that are older than the last one kept. Steps above
/// `newest`, the one just committed, neither count nor go: the training has gone back behind them, since they may be damaged
/// in ways that only reading all of them would show.
/// Requires: keep >= 1; the rank that commits calls it, while nobody else writes these steps.
void prune_checkpoints(const std::string& folder, int keep, std::int64_t newest = detail::max_checkpoint_step);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/checkpoint/checkpoint.ipp>
#endif
