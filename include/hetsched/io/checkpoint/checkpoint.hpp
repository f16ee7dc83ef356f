// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <hetsched/core/checksum.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/state_slice.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/io/checkpoint/checkpoint_manifest.hpp>
#include <hetsched/io/checkpoint/detail/checkpoint_files.hpp>
#include <hetsched/io/json_reader.hpp>

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
[[nodiscard]] inline std::vector<step_folder> list_steps(const std::string& folder) {
  std::vector<step_folder> found;
  std::error_code wrong;
  for (std::filesystem::directory_iterator entry(folder, wrong), end; !wrong && entry != end; entry.increment(wrong)) {
    const auto name = entry->path().filename().string();
    if (!name.starts_with("step-")) continue;
    const auto digits = std::min(name.find_first_not_of("0123456789", 5), name.size());
    if (digits == 5 || digits > 20) continue;
    step_folder f{std::stoll(name.substr(5, digits - 5)), name, name.substr(digits)};
    if (f.step <= max_checkpoint_step && name.substr(0, digits) == step_name(f.step)) found.push_back(std::move(f));
  }
  if (wrong) throw error(folder + ": cannot be read: " + wrong.message());
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.step != b.step ? a.step > b.step : a.suffix < b.suffix; });
  return found;
}

template <class Files>
void write_whole(Files& files, const std::string& path, std::string_view text) {
  files.create(path);
  files.append(path, std::as_bytes(std::span(text)));
  files.sync(path);
}

/// A slice's rows in the whole tensor, and how many elements they are apart in its bytes.
struct held_rows {
  element_rows of;
  std::size_t held = 0;
};

/// Throws: input_error for bytes that are no such rows of the tensor.
[[nodiscard]] inline held_rows rows_held(const state_slice& s, std::size_t size) {
  const std::size_t count = s.bytes.size() / size;
  const bool spread = s.rows > 1 && s.held_apart > 0;
  held_rows found{.of = {.first = s.first, .length = 0, .rows = s.rows, .apart = s.rows > 1 ? s.apart : 0}};
  bool fits = s.bytes.size() % size == 0 && s.rows > 0;
  if (fits && spread) {
    fits = count / s.held_apart >= s.rows - 1;
    found.of.length = fits ? count - (s.rows - 1) * s.held_apart : 0;
    fits = fits && found.of.length <= s.held_apart;
  } else if (fits) {
    fits = count % s.rows == 0;
    found.of.length = count / s.rows;
  }
  found.held = spread ? s.held_apart : found.of.length;
  if (!fits || !lie_in(found.of, static_cast<std::size_t>(element_count(s.shape))))
    throw input_error(tensor_text(s.layer, s.name) + ": " + std::to_string(s.bytes.size()) + " bytes from element " +
                      std::to_string(s.first) + (s.rows == 1 ? "" : " in " + std::to_string(s.rows) + " rows") +
                      " do not lie in " + shape_text(s.element, s.shape));
  return found;
}

/// The size of a slice's elements. Throws: input_error if there are no such.
[[nodiscard]] inline std::size_t element_size(const state_slice& s) {
  const auto size = element_bytes(s.element);
  if (size == 0)
    throw input_error(tensor_text(s.layer, s.name) + ": there is no element " + s.element +
                      "; a name ends with its bits, like f32");
  return size;
}

/// Appends the rows of a slice, one behind the other.
inline void pack(const state_slice& s, const held_rows& rows, std::size_t size, std::vector<std::byte>& packed) {
  for (std::size_t r = 0; r < s.rows; ++r) {
    const auto row = s.bytes.subspan(r * rows.held * size, rows.of.length * size);
    packed.insert(packed.end(), row.begin(), row.end());
  }
}

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
                       .apart = s.rows > 1 ? s.apart : 0});
    if (!bytes.empty()) files.append(data, bytes);
    offset += static_cast<bytes_t>(bytes.size());
  }
  nlohmann::ordered_json document{{"format", "hetsched/checkpoint_part"}, {"version", version_for(written)}, {"step", step}};
  auto& list = document["slices"] = nlohmann::ordered_json::array();
  for (const auto& stored : written) list.push_back(write_slice(stored));
  files.sync(data);
  write_whole(files, part_path(path, part) + ".json", with_checksum(document));
}

/// The slices of a part that is not committed yet.
[[nodiscard]] inline std::vector<stored_slice> read_part(const std::string& path, std::int64_t step, int part) {
  const auto file = part_path(path, part) + ".json";
  const auto text = read_text(file);
  const json_document document(text, file);
  const int version = document.version_of("checkpoint_part", checkpoint_version);
  const auto top = document.with_keys({"step", "slices", "checksum"});
  verify_checksum(text, top.at("checksum"));
  if (top.at("step").integer(0, max_checkpoint_step) != step) top.at("step").expected(std::to_string(step));
  auto slices = top.at("slices").list([&](const json_value& s) { return read_slice(s, version); });
  for (std::size_t i = 0; i < slices.size(); ++i)
    if (slices[i].part != part) top.at("slices")[i].at("part").expected(std::to_string(part));
  return slices;
}

template <class Files>
void commit(Files& files, const std::string& folder, std::int64_t step, int parts,
            const std::map<std::string, std::string>& info) {
  const auto path = step_path(folder, step), writing = path + std::string(writing_suffix);
  std::vector<stored_slice> slices;
  auto sizes = nlohmann::ordered_json::array();
  for (int part = 0; part < parts; ++part) {
    auto found = read_part(writing, step, part);
    bytes_t bytes = 0;
    for (const auto& s : found) bytes += static_cast<bytes_t>(s.count * element_bytes(s.element));
    sizes.push_back(bytes);
    slices.insert(slices.end(), found.begin(), found.end());
  }
  if (const auto fault = coverage_fault(slices); !fault.empty())
    throw input_error("checkpoint of step " + std::to_string(step) + ": " + fault);
  nlohmann::ordered_json document{{"format", "hetsched/checkpoint"}, {"version", version_for(slices)}, {"step", step}};
  document["info"] = info;
  document["parts"] = std::move(sizes);
  auto& list = document["slices"] = nlohmann::ordered_json::array();
  for (const auto& s : slices) list.push_back(write_slice(s));
  write_whole(files, writing + "/manifest.json", with_checksum(document));
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

template <class Files>
void remove_whole(Files& files, const std::string& path) {
  const auto removing = path + std::string(removing_suffix);
  files.remove(removing);
  files.rename(path, removing);
  files.remove(removing);
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
[[nodiscard]] inline checkpoint open_checkpoint(const std::string& path) {
  const auto manifest = path + "/manifest.json";
  std::error_code ignored;
  if (std::filesystem::exists(manifest, ignored) && !std::filesystem::is_regular_file(manifest, ignored))
    throw file_error(manifest, {}, "is no regular file");  // reading a pipe would wait for its writer
  auto result = parse_checkpoint(read_text(manifest), path);
  for (std::size_t p = 0; p < result.parts.size(); ++p) {
    const auto file = detail::part_path(path, static_cast<int>(p)) + ".bin";
    std::error_code wrong;
    const auto size = std::filesystem::file_size(file, wrong);
    if (wrong) throw file_error(file, {}, "cannot be opened");
    if (size != static_cast<std::uintmax_t>(result.parts[p]))
      throw file_error(file, {}, "found " + std::to_string(size) + " bytes, expected " + std::to_string(result.parts[p]));
  }
  return result;
}

namespace detail {

/// Calls visit(slice, bytes) for the slices that are wanted(slice), once their checksums are verified.
/// Throws: file_error.
template <class Wanted, class Visit>
void read_slices(const checkpoint& from, Wanted wanted, Visit visit) {
  std::ifstream in;
  int open = -1;
  std::string file;
  std::vector<std::byte> bytes;
  for (const auto& s : from.slices) {
    if (!wanted(s)) continue;
    if (open != s.part) {
      file = part_path(from.path, open = s.part) + ".bin";
      in.close();
      in.open(file, std::ios::binary);
      if (!in) throw file_error(file, {}, "cannot be opened");
    }
    bytes.resize(s.count * element_bytes(s.element));
    const auto who = tensor_text(s.layer, s.name) + ": ";
    in.seekg(static_cast<std::streamoff>(s.offset));
    if (!in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size())))
      throw file_error(file, {}, who + "ends before byte " + std::to_string(s.offset + static_cast<bytes_t>(bytes.size())));
    if (const auto sum = crc64(bytes); sum != s.checksum)
      throw file_error(file, {},
                       who + "found the checksum " + hexadecimal(sum) + " at byte " + std::to_string(s.offset) + ", expected " +
                           hexadecimal(s.checksum));
    visit(s, std::span<const std::byte>(bytes));
  }
}

}  // namespace detail

/// Reads all of a checkpoint. alive(), if it is given, is called after each slice: reading takes as long as the disk does.
/// Throws: file_error unless every bit is as written, and what alive throws.
inline void verify_checkpoint(const checkpoint& c, const std::function<void()>& alive = {}) {
  detail::read_slices(
      c, [](const stored_slice&) { return true; },
      [&](const stored_slice&, std::span<const std::byte>) {
        if (alive) alive();
      });
}

/// A search's result.
struct found_checkpoint {
  std::optional<checkpoint> newest;  ///< that is whole; none if none is
  std::vector<std::string> damaged;  ///< what is wrong with newer ones, newest first
};

/// The newest whole checkpoint below a folder; a folder that does not exist holds none. Reads all of it, and of damaged newer
/// ones; alive as of verify_checkpoint.
[[nodiscard]] inline found_checkpoint find_checkpoint(const std::string& folder, const std::function<void()>& alive = {}) {
  found_checkpoint found;
  if (!std::filesystem::exists(folder)) return found;
  for (const auto& f : detail::list_steps(folder)) {
    if (!f.suffix.empty() && f.suffix != detail::replaced_suffix) continue;
    try {
      auto c = open_checkpoint(folder + '/' + f.name);
      if (c.step != f.step)
        throw file_error(c.path + "/manifest.json", "/step",
                         "found " + std::to_string(c.step) + ", expected " + std::to_string(f.step));
      verify_checkpoint(c, alive);
      found.newest = std::move(c);
      break;
    } catch (const input_error& wrong) {
      found.damaged.push_back(wrong.what());
    }
  }
  return found;
}

/// Fills slices, which may be cut in any way, with what a checkpoint holds of them. Checksums are verified.
/// alive as of verify_checkpoint.
/// Throws: file_error if it lacks a tensor, has it of another shape or element, or is damaged. Slices may then be filled in
/// part.
/// Complexity: O(n log n + rows) for n slices, and reads only what it needs.
/// Example:
///   const auto found = find_checkpoint("state");
///   if (found.newest) {
///     auto slices = trainer.state();
///     load_checkpoint(*found.newest, slices);
///     trainer.state_loaded();
///     trainer.set_committed_step(found.newest->step);
///   }
inline void load_checkpoint(const checkpoint& from, std::span<state_slice> wanted, const std::function<void()>& alive = {}) {
  using tensor = std::pair<int, std::string_view>;
  std::map<tensor, const stored_slice*> stored;
  for (const auto& s : from.slices) stored.emplace(tensor{s.layer, s.name}, &s);
  using wanted_slice = std::pair<const state_slice*, detail::held_rows>;
  std::map<tensor, std::vector<wanted_slice>> by_tensor;
  const auto refuse = [&](const std::string& what) { throw file_error(from.path + "/manifest.json", "/slices", what); };
  for (const auto& w : wanted) {
    const auto found = stored.find({w.layer, w.name});
    const auto who = detail::tensor_text(w.layer, w.name) + ": ";
    if (found == stored.end()) refuse(who + "is not in the checkpoint");
    const auto& s = *found->second;
    if (s.element != w.element || s.shape != w.shape)
      refuse(who + "found " + detail::shape_text(s.element, s.shape) + ", expected " + detail::shape_text(w.element, w.shape));
    by_tensor[found->first].emplace_back(&w, detail::rows_held(w, detail::element_bytes(s.element)));
  }
  const auto of_tensor = [&](const stored_slice& s) -> const std::vector<wanted_slice>* {
    const auto found = by_tensor.find({s.layer, s.name});
    return found == by_tensor.end() ? nullptr : &found->second;
  };
  detail::read_slices(
      from,
      [&](const stored_slice& s) {
        bool needed = false;
        if (const auto* const slices = of_tensor(s))
          for (const auto& want : *slices)
            detail::for_each_shared(detail::rows_of(s), want.second.of, [&](std::size_t, std::size_t, std::size_t, std::size_t) {
              needed = true;
              return false;
            });
        return needed;
      },
      [&](const stored_slice& s, std::span<const std::byte> bytes) {
        const auto size = detail::element_bytes(s.element);
        const auto stored_rows = detail::rows_of(s);
        for (const auto& want : *of_tensor(s)) {
          const auto& rows = want.second;
          detail::for_each_shared(
              stored_rows, rows.of, [&](std::size_t first, std::size_t last, std::size_t stored_row, std::size_t wanted_row) {
                const auto to = wanted_row * rows.held + first - rows.of.begin(wanted_row);
                const auto at = stored_row * stored_rows.length + first - stored_rows.begin(stored_row);
                std::memcpy(want.first->bytes.data() + to * size, bytes.data() + at * size, (last - first) * size);
                return true;
              });
        }
        if (alive) alive();
      });
}

/// Removes all but the newest `keep` checkpoints, and what writers that were stopped have left of steps up to the newest one.
/// Checkpoints that cannot be opened do not count; they go with those that are older than the last one kept. Steps above
/// `newest`, the one just committed, neither count nor go: the training has gone back behind them, since they may be damaged
/// in ways that only reading all of them would show.
/// Requires: keep >= 1; the rank that commits calls it, while nobody else writes these steps.
inline void prune_checkpoints(const std::string& folder, int keep, std::int64_t newest = detail::max_checkpoint_step) {
  if (keep < 1) throw input_error("at least one checkpoint must be kept, not " + std::to_string(keep));
  detail::checkpoint_files files;
  int kept = 0;
  std::int64_t last_kept = -1;
  for (const auto& f : detail::list_steps(folder)) {
    if (f.step > newest) continue;
    const auto path = folder + '/' + f.name;
    const bool replaced = f.suffix == detail::replaced_suffix;
    if (f.suffix == detail::removing_suffix || (f.suffix == detail::writing_suffix && kept > 0)) {
      files.remove(path);
    } else if (f.suffix.empty() || replaced) {
      if (kept >= keep || (replaced && last_kept == f.step)) {
        detail::remove_whole(files, path);
        continue;
      }
      try {
        if (open_checkpoint(path).step != f.step) continue;
        ++kept;
        last_kept = f.step;
      } catch (const error&) {  // damaged: what is older stays
      }
    }
  }
}

}  // namespace hetsched
