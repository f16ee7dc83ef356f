// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/io/checkpoint/checkpoint_test.cpp.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <hetsched/core/checksum.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/units.hpp>
#include <hetsched/io/json/json_reader.hpp>

namespace hetsched {

/// A slice that lies in a checkpoint.
struct stored_slice {
  int layer = 0;
  std::string name;
  std::string element;
  std::vector<std::size_t> shape;    ///< of the whole tensor
  std::size_t first = 0, count = 0;  ///< elements
  int part = 0;
  bytes_t offset = 0;  ///< in the part
  std::uint64_t checksum = 0;
  friend bool operator==(const stored_slice&, const stored_slice&) = default;
};

/// A training's state on disk: a folder with parts, a file each, and manifest.json, which says what is where. Tensors are
/// known by layer and name, so any set of ranks can load what any other has written.
struct checkpoint {
  std::string path;
  std::int64_t step = 0;                    ///< steps done
  std::map<std::string, std::string> info;  ///< the writer's own notes
  std::vector<bytes_t> parts;               ///< their sizes
  std::vector<stored_slice> slices;         ///< in the order of the parts and the offsets; every tensor is there exactly once
};

namespace detail {

inline constexpr std::int64_t max_checkpoint_step = 1'000'000'000'000'000;
inline constexpr int max_checkpoint_parts = 1'000'000;

/// Bytes of an element, from the bits at the end of its name; 0 if there is no such element.
[[nodiscard]] inline std::size_t element_bytes(std::string_view element) {
  std::size_t bits = 0;
  for (const char c : element.substr(std::min(element.find_first_of("0123456789"), element.size()))) {
    if (c < '0' || c > '9' || bits > 1000) return 0;
    bits = 10 * bits + static_cast<std::size_t>(c - '0');
  }
  return bits % 8 == 0 ? bits / 8 : 0;
}

[[nodiscard]] inline bytes_t element_count(const std::vector<std::size_t>& shape) {
  bytes_t count = 1;
  for (const auto extent : shape) count = checked_mul(count, static_cast<bytes_t>(extent));
  return count;
}

[[nodiscard]] inline std::string tensor_text(int layer, const std::string& name) {
  return "layer " + std::to_string(layer) + ", " + name;
}
[[nodiscard]] inline std::string shape_text(const std::string& element, const std::vector<std::size_t>& shape) {
  std::string text = element + '[';
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? " x " : "") + std::to_string(shape[i]);
  return text + ']';
}
[[nodiscard]] inline std::string elements_text(std::size_t first, std::size_t last) {
  return "elements " + std::to_string(first) + " to " + std::to_string(last - 1);
}

/// Why the slices do not hold every tensor exactly once; empty if they do.
/// Complexity: O(n log n) for n slices.
[[nodiscard]] inline std::string coverage_fault(const std::vector<stored_slice>& slices) {
  std::vector<const stored_slice*> sorted;
  for (const auto& s : slices) sorted.push_back(&s);
  const auto key = [](const stored_slice& s) { return std::tie(s.layer, s.name, s.first, s.count); };
  std::sort(sorted.begin(), sorted.end(), [&](const auto* a, const auto* b) { return key(*a) < key(*b); });
  for (std::size_t i = 0; i < sorted.size();) {
    const auto& head = *sorted[i];
    const auto who = tensor_text(head.layer, head.name) + ": ";
    const auto whole = static_cast<std::size_t>(element_count(head.shape));
    std::size_t next = 0;
    for (; i < sorted.size() && sorted[i]->layer == head.layer && sorted[i]->name == head.name; ++i) {
      const auto& s = *sorted[i];
      if (s.element != head.element || s.shape != head.shape)
        return who + "is " + shape_text(head.element, head.shape) + " in part " + std::to_string(head.part) + ", but " +
               shape_text(s.element, s.shape) + " in part " + std::to_string(s.part);
      if (s.count == 0) continue;
      if (s.first > next) return who + elements_text(next, s.first) + " are in no part";
      if (s.first < next)
        return who + elements_text(s.first, std::min(next, s.first + s.count)) + " are there twice, again in part " +
               std::to_string(s.part);
      next += s.count;
    }
    if (next < whole) return who + elements_text(next, whole) + " are in no part";
  }
  return {};
}

[[nodiscard]] inline std::string hexadecimal(std::uint64_t value) {
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 15];
  return text;
}

[[nodiscard]] inline std::uint64_t read_checksum(const json_value& value) {
  const auto text = value.text();
  if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos)
    value.expected("16 hexadecimal digits");
  std::uint64_t number = 0;
  for (const char c : text) number = number << 4 | static_cast<std::uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  return number;
}

[[nodiscard]] inline nlohmann::ordered_json write_slice(const stored_slice& s) {
  return {{"layer", s.layer}, {"name", s.name},     {"element", s.element},
          {"shape", s.shape}, {"first", s.first},   {"count", s.count},
          {"part", s.part},   {"offset", s.offset}, {"checksum", hexadecimal(s.checksum)}};
}

[[nodiscard]] inline stored_slice read_slice(const json_value& value) {
  value.object({"layer", "name", "element", "shape", "first", "count", "part", "offset", "checksum"});
  stored_slice s;
  s.layer = value.at("layer").count(0);
  s.name = value.at("name").name();
  s.element = value.at("element").name();
  if (element_bytes(s.element) == 0) value.at("element").expected("an element and its bits, like f32");
  const auto shape = value.at("shape");
  s.shape = shape.list([](const json_value& extent) { return static_cast<std::size_t>(extent.bytes()); });
  bytes_t whole = 0;
  try {
    whole = element_count(s.shape);
  } catch (const input_error&) {
    shape.fail("more elements than can be counted");
  }
  const auto first = value.at("first").integer(0, whole);
  s.first = static_cast<std::size_t>(first);
  s.count = static_cast<std::size_t>(value.at("count").integer(0, whole - first));
  s.part = value.at("part").count(0, max_checkpoint_parts - 1);
  s.offset = value.at("offset").bytes();
  s.checksum = read_checksum(value.at("checksum"));
  return s;
}

/// The text of a document with its checksum, of all that stands before it, as the last member.
[[nodiscard]] inline std::string with_checksum(const nlohmann::ordered_json& document) {
  auto text = dump(document);
  text.resize(text.size() - 3);  // "\n}\n"
  const auto sum = crc64(std::as_bytes(std::span(text)));
  return text + ",\n  \"checksum\": \"" + hexadecimal(sum) + "\"\n}\n";
}

inline void verify_checksum(std::string_view text, const json_value& checksum) {
  const std::string tail = ",\n  \"checksum\": \"" + hexadecimal(read_checksum(checksum)) + "\"\n}\n";
  const auto head = text.substr(0, text.size() - std::min(text.size(), tail.size()));
  if (!text.ends_with(tail) || crc64(std::as_bytes(std::span(head))) != read_checksum(checksum))
    checksum.fail("the document does not have this checksum: it has been changed since it was written");
}

}  // namespace detail

/// Reads a manifest.json from its text; `path`: of the checkpoint, for messages.
/// Throws: file_error.
/// Complexity: O(n log n) for n slices.
[[nodiscard]] inline checkpoint parse_checkpoint(std::string_view text, const std::string& path) {
  const detail::json_document document(text, path + "/manifest.json");
  const auto top = document.format("checkpoint", {"step", "info", "parts", "slices", "checksum"});
  detail::verify_checksum(text, top.at("checksum"));
  checkpoint result;
  result.path = path;
  result.step = top.at("step").integer(0, detail::max_checkpoint_step);
  top.at("info").members([&](const std::string& key, const detail::json_value& value) { result.info[key] = value.text(); });
  const auto parts = top.at("parts");
  result.parts = parts.list([](const detail::json_value& size) { return size.bytes(); });
  const auto slices = top.at("slices");
  result.slices = slices.list(detail::read_slice);
  // Parts are full, one slice behind the other: so every bit of them is under a checksum.
  std::vector<bytes_t> filled(result.parts.size());
  int part = 0;
  for (std::size_t i = 0; i < result.slices.size(); ++i) {
    const auto& s = result.slices[i];
    if (s.part < part || s.part >= static_cast<int>(filled.size()))
      slices[i].at("part").expected("one of the parts, in their order");
    part = s.part;
    auto& end = filled[static_cast<std::size_t>(part)];
    if (s.offset != end) slices[i].at("offset").expected(std::to_string(end) + ", the end of the slice before");
    const auto room =
        static_cast<std::size_t>(result.parts[static_cast<std::size_t>(part)] - end) / detail::element_bytes(s.element);
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
