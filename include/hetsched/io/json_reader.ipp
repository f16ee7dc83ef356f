// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fstream>

#include <hetsched/core/compiled.hpp>
#include <hetsched/io/json_reader.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::string pointer_to(const std::string& parent, std::string_view key) {
  std::string pointer = parent + '/';
  for (const char c : key) {
    if (c == '~')
      pointer += "~0";
    else if (c == '/')
      pointer += "~1";
    else
      pointer += c;
  }
  return pointer;
}

/// The nearest of some names, if it is near enough to be a typing error.
[[nodiscard]] inline std::optional<std::string_view> nearest(std::string_view name, const std::vector<std::string_view>& known) {
  if (name.size() > 64) return std::nullopt;
  std::optional<std::string_view> best;
  std::size_t least = 1 + name.size() / 3;
  for (const auto candidate : known) {
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= name.size(); ++i) {
      std::size_t diagonal = std::exchange(row[0], i);
      for (std::size_t j = 1; j < row.size(); ++j) {
        const std::size_t replaced = diagonal + (name[i - 1] != candidate[j - 1]);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
      }
    }
    if (row.back() <= least) {
      if (row.back() == least && best) continue;
      least = row.back();
      best = candidate;
    }
  }
  return best;
}

HETSCHED_INLINE std::vector<std::string_view> names_like(std::string_view name, const std::vector<std::string_view>& known) {
  const auto plain = [](std::string_view text) {
    std::string letters;
    for (const char c : text)
      if (c != '-' && c != '_') letters += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return letters;
  };
  const auto letters = plain(name);
  std::vector<std::string_view> equal, longer, shorter;
  for (const auto candidate : known) {
    const auto other = plain(candidate);
    if (other == letters) equal.push_back(candidate);
    if (letters.size() > 2 && other.find(letters) != std::string::npos) longer.push_back(candidate);
    if (other.size() > 2 && letters.ends_with(other) && (shorter.empty() || plain(shorter.front()).size() < other.size()))
      shorter = {candidate};
  }
  if (!equal.empty()) return equal;
  if (!longer.empty()) return longer;
  if (!shorter.empty()) return shorter;
  if (const auto guess = nearest(name, known)) return {*guess};
  return {};
}

HETSCHED_INLINE std::string suggestion(std::string_view name, const std::vector<std::string_view>& known) {
  std::string text;
  for (const auto guess : names_like(name, known))
    text += (text.empty() ? "did you mean \"" : " or \"") + std::string(guess) + "\"";
  text += text.empty() ? "Known: " : "? Known: ";
  for (std::size_t i = 0; i < known.size(); ++i) text += (i ? ", " : "") + std::string(known[i]);
  return text;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE std::string read_text(const std::string& path) {
  std::ifstream in(path == "-" ? "/dev/stdin" : path, std::ios::binary);
  if (!in) throw file_error(path, {}, "cannot be opened");
  std::string text;
  char buffer[1 << 16];
  while (in.read(buffer, sizeof buffer), in.gcount() > 0) {
    text.append(buffer, static_cast<std::size_t>(in.gcount()));
    if (text.size() > max_json_bytes)
      throw file_error(path, {}, "is larger than " + std::to_string(max_json_bytes >> 20) + " MiB");
  }
  if (in.bad()) throw file_error(path, {}, "cannot be read");
  return text;
}

}  // namespace hetsched

namespace hetsched::detail {

HETSCHED_INLINE json_builder::json* json_builder::put(json value) {
  if (open_.empty()) {
    root_ = std::move(value);
    return &root_;
  }
  json& parent = *open_.back();
  if (parent.is_array()) {
    parent.push_back(std::move(value));
    return &parent.back();
  }
  return &(parent[key_] = std::move(value));
}

HETSCHED_INLINE std::int64_t json_value::integer(std::int64_t low, std::int64_t high) const {
  const auto range = [&] { return "a whole number in [" + std::to_string(low) + ", " + std::to_string(high) + "]"; };
  if (!value_->is_number()) expected(range());
  std::int64_t value{};
  if (value_->is_number_float()) {
    const double real = value_->get<double>();
    if (!(std::abs(real) <= 0x1p53) || real != std::floor(real)) expected(range());
    value = static_cast<std::int64_t>(real);
  } else if (value_->is_number_unsigned()) {
    const auto count = value_->get<std::uint64_t>();
    if (count > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) expected(range());
    value = static_cast<std::int64_t>(count);
  } else {
    value = value_->get<std::int64_t>();
  }
  if (value < low || value > high) expected(range());
  return value;
}

HETSCHED_INLINE std::string json_value::found(const nlohmann::json& value) {
  switch (value.type()) {
    case nlohmann::json::value_t::object:
      return "an object";
    case nlohmann::json::value_t::array:
      return "an array of " + std::to_string(value.size());
    default:
      return excerpt(value.dump());
  }
}

HETSCHED_INLINE int json_document::version_of(const std::string& kind, int latest) const {
  const auto top = value();
  top.object();
  const std::string wanted = "hetsched/" + kind;
  if (const auto format = top.at("format"); format.text() != wanted) format.expected('"' + wanted + '"');
  const auto version = top.at("version");
  const auto found = version.integer(0, max_version);
  if (found < 1 || found > latest)
    version.expected(latest == 1 ? "1, the only version that this program knows"
                                 : "1 to " + std::to_string(latest) + ", the versions that this program knows");
  return static_cast<int>(found);
}

}  // namespace hetsched::detail
