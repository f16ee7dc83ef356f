// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/checkpoint/checkpoint.hpp>
#include <hetsched/io/json_reader.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::string part_text(std::int64_t step, const std::vector<stored_slice>& written) {
  nlohmann::ordered_json document{{"format", "hetsched/checkpoint_part"}, {"version", version_for(written)}, {"step", step}};
  auto& list = document["slices"] = nlohmann::ordered_json::array();
  for (const auto& stored : written) list.push_back(write_slice(stored));
  return with_checksum(document);
}

HETSCHED_INLINE std::string manifest_text(std::int64_t step, const std::map<std::string, std::string>& info,
                                          const std::vector<bytes_t>& sizes, const std::vector<stored_slice>& slices) {
  nlohmann::ordered_json document{{"format", "hetsched/checkpoint"}, {"version", version_for(slices)}, {"step", step}};
  document["info"] = info;
  document["parts"] = sizes;
  auto& list = document["slices"] = nlohmann::ordered_json::array();
  for (const auto& s : slices) list.push_back(write_slice(s));
  return with_checksum(document);
}

HETSCHED_INLINE std::vector<step_folder> list_steps(const std::string& folder) {
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

HETSCHED_INLINE std::vector<stored_slice> read_part(const std::string& path, std::int64_t step, int part) {
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
void remove_whole(Files& files, const std::string& path) {
  const auto removing = path + std::string(removing_suffix);
  files.remove(removing);
  files.rename(path, removing);
  files.remove(removing);
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE checkpoint open_checkpoint(const std::string& path) {
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

}  // namespace hetsched

namespace hetsched::detail {

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
    const auto who = tensor_text(s.layer, s.name, s.own_name) + ": ";
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

HETSCHED_INLINE std::string unmatched_text(const unmatched_tensors& u) {
  std::string text;
  const auto add = [&](const std::vector<std::string>& names, const std::string& what) {
    if (names.empty()) return;
    if (!text.empty()) text += "; ";
    text += std::to_string(names.size()) + (names.size() == 1 ? " tensor " : " tensors ") + what + " (";
    constexpr std::size_t most = 16;
    for (std::size_t i = 0; i < std::min(names.size(), most); ++i) text += (i == 0 ? "" : "; ") + names[i];
    text += names.size() > most ? "; ...)" : ")";
  };
  add(u.missing, "missing");
  add(u.left_over, "left over");
  return text;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE void verify_checkpoint(const checkpoint& c, const std::function<void()>& alive) {
  detail::read_slices(
      c, [](const stored_slice&) { return true; },
      [&](const stored_slice&, std::span<const std::byte>) {
        if (alive) alive();
      });
}

HETSCHED_INLINE found_checkpoint find_checkpoint(const std::string& folder, const std::function<void()>& alive) {
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

HETSCHED_INLINE unmatched_tensors load_checkpoint(const checkpoint& from, std::span<state_slice> wanted,
                                                  const load_options& options) {
  // By what layers call their tensors, where both sides have that for tensors of this kind in this layer.
  using tensor = std::pair<int, std::string>;
  const auto kind_of = [](const auto& s) { return tensor{s.layer, s.name.substr(0, s.name.rfind('.') + 1)}; };
  std::set<tensor> stored_names, wanted_names;
  for (const auto& s : from.slices)
    if (!s.own_name.empty()) stored_names.insert(kind_of(s));
  for (const auto& w : wanted)
    if (!w.own_name.empty() && stored_names.contains(kind_of(w))) wanted_names.insert(kind_of(w));
  const auto key_of = [&](const auto& s) {
    return tensor{s.layer, wanted_names.contains(kind_of(s)) ? detail::name_by_layer(s.name, s.own_name) : s.name};
  };
  std::map<tensor, const stored_slice*> stored;
  for (const auto& s : from.slices) stored.emplace(key_of(s), &s);
  using wanted_slice = std::pair<const state_slice*, detail::held_rows>;
  std::map<tensor, std::vector<wanted_slice>> by_tensor;
  std::map<tensor, std::string> missing;
  const auto refuse = [&](const std::string& what) { throw file_error(from.path + "/manifest.json", "/slices", what); };
  for (const auto& w : wanted) {
    const auto who = detail::tensor_text(w.layer, w.name, w.own_name);
    auto found = stored.find(key_of(w));
    if (wanted_names.contains(kind_of(w)))
      for (std::size_t n = 0; n < w.other_names.size() && found == stored.end(); ++n)
        found = stored.find({w.layer, detail::name_by_layer(w.name, w.other_names[n])});
    if (found == stored.end()) {
      missing.emplace(tensor{w.layer, w.name}, who);
      continue;
    }
    const auto& s = *found->second;
    if (s.element != w.element || s.shape != w.shape)
      refuse(who + ": found " + detail::shape_text(s.element, s.shape) + ", expected " + detail::shape_text(w.element, w.shape));
    by_tensor[found->first].emplace_back(&w, detail::rows_held(w, detail::element_bytes(s.element)));
  }
  unmatched_tensors unmatched;
  for (const auto& [what, text] : missing) unmatched.missing.push_back(text);
  for (const auto& [what, s] : stored)
    if (!by_tensor.contains(what)) unmatched.left_over.push_back(detail::tensor_text(s->layer, s->name, s->own_name));
  if (options.strict && !(unmatched.missing.empty() && unmatched.left_over.empty())) refuse(detail::unmatched_text(unmatched));
  const auto of_tensor = [&](const stored_slice& s) -> const std::vector<wanted_slice>* {
    const auto found = by_tensor.find(key_of(s));
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
        if (options.alive) options.alive();
      });
  return unmatched;
}

HETSCHED_INLINE void prune_checkpoints(const std::string& folder, int keep, std::int64_t newest) {
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
