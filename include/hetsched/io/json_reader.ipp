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

HETSCHED_INLINE std::optional<std::string_view> nearest(std::string_view name, const std::vector<std::string_view>& known) {
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
