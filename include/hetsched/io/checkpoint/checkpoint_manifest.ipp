// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/core/checksum.hpp>
#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/index.hpp>
#include <hetsched/io/checkpoint/checkpoint_manifest.hpp>

namespace hetsched::detail {

[[nodiscard]] inline std::string elements_text(std::size_t first, std::size_t last) {
  return "elements " + std::to_string(first) + " to " + std::to_string(last - 1);
}

HETSCHED_INLINE int version_for(const std::vector<stored_slice>& slices) {
  const auto any = [&](auto&& is) { return std::any_of(slices.begin(), slices.end(), is); };
  if (any([](const stored_slice& s) { return !s.own_name.empty(); })) return 3;
  return any([](const stored_slice& s) { return s.rows > 1; }) ? 2 : 1;
}

HETSCHED_INLINE std::string name_by_layer(const std::string& name, const std::string& own_name) {
  return own_name.empty() ? name : name.substr(0, name.rfind('.') + 1) + own_name;
}

HETSCHED_INLINE std::string tensor_text(int layer, const std::string& name, const std::string& own_name) {
  return tensor_text(layer, name) + (own_name.empty() ? "" : " (" + own_name + ")");
}

/// Of lines of a tensor's elements, all equally long: columns [first, last) of lines [top, bottom).
struct covered_box {
  std::size_t top, bottom, first, last;
  const stored_slice* of;
};

/// How two slices that are of one tensor by layer and name disagree about it, in words; empty if they do not.
[[nodiscard]] inline std::string unlike_slices(const stored_slice& a, const stored_slice& b) {
  if (a.element != b.element || a.shape != b.shape)
    return "is " + shape_text(a.element, a.shape) + " in part " + std::to_string(a.part) + ", but " +
           shape_text(b.element, b.shape) + " in part " + std::to_string(b.part);
  if (a.own_name != b.own_name)
    return "its layer calls it \"" + a.own_name + "\" in part " + std::to_string(a.part) + ", but \"" + b.own_name +
           "\" in part " + std::to_string(b.part);
  return {};
}

/// The length of the lines that the slices of a tensor of `whole` elements are cut from; all of it where they do not agree.
[[nodiscard]] inline std::size_t line_length(std::span<const stored_slice* const> slices, std::size_t whole) {
  std::size_t line = 0;
  for (const auto* s : slices) {
    if (s->rows == 1) continue;
    if (line != 0 && line != s->apart) return std::max<std::size_t>(whole, 1);
    line = s->apart;
  }
  return line == 0 ? std::max<std::size_t>(whole, 1) : line;
}

/// Adds the boxes of a slice.
inline void add_boxes(std::vector<covered_box>& boxes, const stored_slice& slice, std::size_t line) {
  const auto r = rows_of(slice);
  if (r.length == 0) return;
  const auto add = [&](std::size_t first, std::size_t last, std::size_t rows) {
    boxes.push_back({first / line, first / line + rows, first % line, first % line + (last - first), &slice});
  };
  if (r.rows > 1 && r.apart == line) {
    add(r.first, r.first + r.length, r.rows);
    return;
  }
  for (std::size_t row = 0; row < r.rows; ++row) {
    std::size_t first = r.begin(row);
    const std::size_t last = first + r.length, next = std::min(last, (first / line + 1) * line);
    if (first % line != 0) {
      add(first, next, 1);
      first = next;
    }
    if (const auto full = (last - first) / line; full > 0) {
      add(first, first + line, full);
      first += full * line;
    }
    if (first < last) add(first, last, 1);
  }
}

/// Which of a tensor's `whole` elements are in no box or in two, in words; empty if none are.
[[nodiscard]] inline std::string box_fault(const std::vector<covered_box>& boxes, std::size_t line, std::size_t whole) {
  std::vector<std::size_t> lines{0, whole / line, (whole + line - 1) / line};
  for (const auto& b : boxes) lines.insert(lines.end(), {b.top, b.bottom});
  std::sort(lines.begin(), lines.end());
  lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
  std::vector<covered_box> here;
  for (std::size_t k = 0; k + 1 < lines.size(); ++k) {
    const std::size_t base = lines[k] * line, width = std::min(line, whole - base);
    here.clear();
    for (const auto& b : boxes)
      if (b.top <= lines[k] && lines[k] < b.bottom) here.push_back(b);
    std::stable_sort(here.begin(), here.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::size_t next = 0;
    for (const auto& b : here) {
      if (b.first > next) return elements_text(base + next, base + b.first) + " are in no part";
      if (b.first < next)
        return elements_text(base + b.first, base + std::min(next, b.last)) + " are there twice, again in part " +
               std::to_string(b.of->part);
      next = b.last;
    }
    if (next < width) return elements_text(base + next, base + width) + " are in no part";
  }
  return {};
}

HETSCHED_INLINE std::string coverage_fault(const std::vector<stored_slice>& slices) {
  std::vector<const stored_slice*> sorted;
  for (const auto& s : slices) sorted.push_back(&s);
  const auto key = [](const stored_slice& s) { return std::tie(s.layer, s.name, s.first, s.count); };
  std::stable_sort(sorted.begin(), sorted.end(), [&](const auto* a, const auto* b) { return key(*a) < key(*b); });
  std::map<std::pair<int, std::string>, const stored_slice*> by_layer;
  std::vector<covered_box> boxes;
  for (std::size_t i = 0; i < sorted.size();) {
    const auto& head = *sorted[i];
    const auto who = tensor_text(head.layer, head.name) + ": ";
    const auto begin = i;
    for (; i < sorted.size() && sorted[i]->layer == head.layer && sorted[i]->name == head.name; ++i)
      if (auto fault = unlike_slices(head, *sorted[i]); !fault.empty()) return who + fault;
    if (const auto& other = by_layer.emplace(std::pair(head.layer, name_by_layer(head.name, head.own_name)), &head).first->second;
        other != &head)
      return who + "its layer calls " + other->name + " \"" + head.own_name + "\", too";
    const std::span own(sorted.data() + begin, i - begin);
    const auto whole = as_size(element_count(head.shape));
    const auto line = line_length(own, whole);
    boxes.clear();
    for (const auto* s : own) add_boxes(boxes, *s, line);
    if (auto fault = box_fault(boxes, line, whole); !fault.empty()) return who + fault;
  }
  return {};
}

[[nodiscard]] inline std::uint64_t read_checksum(const json_value& value) {
  const auto text = value.text();
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    value.expected("16 hexadecimal digits");
  std::uint64_t number = 0;
  for (const char c : text) number = number << 4 | static_cast<std::uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  return number;
}

HETSCHED_INLINE nlohmann::ordered_json write_slice(const stored_slice& s) {
  nlohmann::ordered_json written{{"layer", s.layer}, {"name", s.name}};
  if (!s.own_name.empty()) written["own_name"] = s.own_name;
  written.update({{"element", s.element}, {"shape", s.shape}, {"first", s.first}, {"count", s.count}});
  if (s.rows > 1) written.update({{"rows", s.rows}, {"apart", s.apart}});
  written.update({{"part", s.part}, {"offset", s.offset}, {"checksum", hexadecimal(s.checksum)}});
  return written;
}

HETSCHED_INLINE stored_slice read_slice(const json_value& value, int version) {
  if (version > 2)
    value.object(
        {"layer", "name", "own_name", "element", "shape", "first", "count", "rows", "apart", "part", "offset", "checksum"});
  else if (version > 1)
    value.object({"layer", "name", "element", "shape", "first", "count", "rows", "apart", "part", "offset", "checksum"});
  else
    value.object({"layer", "name", "element", "shape", "first", "count", "part", "offset", "checksum"});
  stored_slice s;
  s.layer = value.at("layer").count(0);
  s.name = value.at("name").name();
  if (const auto own = value.find("own_name")) s.own_name = own->name();
  s.element = value.at("element").name();
  if (element_bytes(s.element) == 0) value.at("element").expected("an element and its bits, like f32");
  const auto shape = value.at("shape");
  s.shape = shape.list([](const json_value& extent) { return as_size(extent.bytes()); });
  bytes_t whole = 0;
  try {
    whole = element_count(s.shape);
  } catch (const input_error&) {
    shape.fail("more elements than can be counted");
  }
  const auto first = value.at("first").integer(0, whole);
  s.first = as_size(first);
  s.count = as_size(value.at("count").integer(0, whole - first));
  if (const auto rows = value.find("rows")) {
    s.rows = as_size(rows->integer(2, std::max<std::int64_t>(whole, 2)));
    s.apart = as_size(value.at("apart").integer(1, std::max<std::int64_t>(whole, 1)));
    if (s.count % s.rows != 0 || !lie_in(rows_of(s), as_size(whole)))
      value.at("rows").expected("rows of equal length that lie in the tensor");
  }
  s.part = value.at("part").count(0, max_checkpoint_parts - 1);
  s.offset = value.at("offset").bytes();
  s.checksum = read_checksum(value.at("checksum"));
  return s;
}

HETSCHED_INLINE std::string with_checksum(const nlohmann::ordered_json& document) {
  auto text = dump(document);
  text.resize(text.size() - 3);  // "\n}\n"
  const auto sum = crc64(std::as_bytes(std::span(text)));
  return text + ",\n  \"checksum\": \"" + hexadecimal(sum) + "\"\n}\n";
}

HETSCHED_INLINE void verify_checksum(std::string_view text, const json_value& checksum) {
  const std::string tail = ",\n  \"checksum\": \"" + hexadecimal(read_checksum(checksum)) + "\"\n}\n";
  const auto head = text.substr(0, text.size() - std::min(text.size(), tail.size()));
  if (!text.ends_with(tail) || crc64(std::as_bytes(std::span(head))) != read_checksum(checksum))
    checksum.fail("the document does not have this checksum: it has been changed since it was written");
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE checkpoint parse_checkpoint(std::string_view text, const std::string& path) {
  const detail::json_document document(text, path + "/manifest.json");
  const int version = document.version_of("checkpoint", detail::checkpoint_version);
  const auto top = document.with_keys({"step", "info", "parts", "slices", "checksum"});
  detail::verify_checksum(text, top.at("checksum"));
  checkpoint result;
  result.path = path;
  result.step = top.at("step").integer(0, detail::max_checkpoint_step);
  top.at("info").members([&](const std::string& key, const detail::json_value& value) { result.info[key] = value.text(); });
  const auto parts = top.at("parts");
  result.parts = parts.list([](const detail::json_value& size) { return size.bytes(); });
  const auto slices = top.at("slices");
  result.slices = slices.list([&](const detail::json_value& s) { return detail::read_slice(s, version); });
  // Parts are full, one slice behind the other: so every bit of them is under a checksum.
  std::vector<bytes_t> filled(result.parts.size());
  int part = 0;
  for (std::size_t i = 0; i < result.slices.size(); ++i) {
    const auto& s = result.slices[i];
    if (s.part < part || s.part >= static_cast<int>(filled.size()))
      slices[i].at("part").expected("one of the parts, in their order");
    part = s.part;
    auto& end = at(filled, part);
    if (s.offset != end) slices[i].at("offset").expected(std::to_string(end) + ", the end of the slice before");
    const auto room = as_size(at(result.parts, part) - end) / detail::element_bytes(s.element);
    if (s.count > room)
      slices[i].at("count").expected("at most the " + std::to_string(room) + " elements that the part has left");
    end += static_cast<bytes_t>(s.count * detail::element_bytes(s.element));
  }
  for (std::size_t p = 0; p < filled.size(); ++p)
    if (filled[p] != result.parts[p]) parts[p].expected(std::to_string(filled[p]) + ", the size of its slices");
  if (const auto fault = detail::coverage_fault(result.slices); !fault.empty()) slices.fail(fault);
  return result;
}

}  // namespace hetsched
