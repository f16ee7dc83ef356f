// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <hetsched/core/error.hpp>
#include <hetsched/core/units.hpp>

namespace hetsched {

/// A file that cannot be read or breaks its format. `what()` names the file, the place in it as a JSON pointer,
/// what was found and what was expected.
class file_error : public input_error {
 public:
  file_error(std::string file, std::string pointer, const std::string& complaint)
      : input_error(file + ": " + (pointer.empty() ? "" : pointer + ": ") + complaint),
        file_(std::move(file)),
        pointer_(std::move(pointer)) {}

  [[nodiscard]] const std::string& file() const { return file_; }
  /// RFC 6901; empty for the whole document.
  [[nodiscard]] const std::string& pointer() const { return pointer_; }

 private:
  std::string file_;
  std::string pointer_;
};

/// Longest file and deepest nesting that the readers take.
inline constexpr std::size_t max_json_bytes = std::size_t{64} << 20;
inline constexpr int max_json_depth = 32;

/// Largest magnitude of a number in a file.
inline constexpr double max_json_number = 1e18;

namespace detail {

[[nodiscard]] std::string pointer_to(const std::string& parent, std::string_view key);

/// Text for a message: short, on one line.
[[nodiscard]] inline std::string excerpt(const std::string& text, std::size_t longest = 60) {
  return text.size() <= longest ? text : text.substr(0, longest - 3) + "...";
}

/// Builds the document while it is parsed, and refuses what a parser lets pass: repeated keys and deep nesting.
class json_builder {
 public:
  using json = nlohmann::json;

  explicit json_builder(std::string file) : file_(std::move(file)) {}

  bool null() { return place(nullptr); }
  bool boolean(bool value) { return place(value); }
  bool number_integer(json::number_integer_t value) { return place(value); }
  bool number_unsigned(json::number_unsigned_t value) { return place(value); }
  bool number_float(json::number_float_t value, const std::string&) { return place(value); }
  bool string(std::string& value) { return place(std::move(value)); }
  bool binary(json::binary_t&) { return false; }
  bool start_object(std::size_t) { return open(json::object()); }
  bool start_array(std::size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& name) {
    if (open_.back()->contains(name)) fail(pointer_to(pointer(open_.size() - 1), name), "the key appears twice");
    key_ = name;
    keys_.back() = name;
    return true;
  }

  template <class Exception>
  [[noreturn]] bool parse_error(std::size_t, const std::string&, const Exception& what) {
    std::string text = what.what();
    if (const auto end = text.find("] "); end != std::string::npos) text.erase(0, end + 2);
    fail(here(), excerpt(text, 240));
  }

  [[nodiscard]] json take() { return std::move(root_); }

 private:
  [[noreturn]] void fail(std::string pointer, const std::string& complaint) const {
    throw file_error(file_, std::move(pointer), complaint);
  }

  /// Pointer to the container at a depth.
  [[nodiscard]] std::string pointer(std::size_t depth) const {
    std::string text;
    for (std::size_t i = 0; i < depth; ++i) text = pointer_to(text, step(i, open_[i]->size() - (open_[i]->is_array() ? 1 : 0)));
    return text;
  }

  /// Pointer to the value that comes next.
  [[nodiscard]] std::string here() const {
    if (open_.empty()) return {};
    const auto last = open_.size() - 1;
    if (open_[last]->is_object() && keys_[last].empty()) return pointer(last);
    return pointer_to(pointer(last), step(last, open_[last]->size()));
  }

  [[nodiscard]] std::string step(std::size_t depth, std::size_t index) const {
    return open_[depth]->is_array() ? std::to_string(index) : keys_[depth];
  }

  json* put(json value);

  bool place(json value) {
    put(std::move(value));
    return true;
  }

  bool open(json container) {
    if (open_.size() >= static_cast<std::size_t>(max_json_depth))
      fail(here(), "nested deeper than " + std::to_string(max_json_depth) + " levels");
    open_.push_back(put(std::move(container)));
    keys_.emplace_back();
    return true;
  }

  bool close() {
    open_.pop_back();
    keys_.pop_back();
    return true;
  }

  std::string file_;
  json root_;
  std::vector<json*> open_;  // stable: a container's children move only while it is the innermost one
  std::vector<std::string> keys_;
  std::string key_;
};

/// The names that one may stand for: those equal but for case, '-' and '_'; else, for three letters or more, those that contain
/// it; else the longest that it ends with ("RTX-A5000"); else the nearest.
[[nodiscard]] std::vector<std::string_view> names_like(std::string_view name, const std::vector<std::string_view>& known);

/// `did you mean "x" or "y"? Known: a, b, c` for a name that is not among the known ones.
[[nodiscard]] std::string suggestion(std::string_view name, const std::vector<std::string_view>& known);

/// A value in a document, with its file and its place for messages. Refers to the document and is cheap to copy.
class json_value {
 public:
  json_value(const nlohmann::json& value, const std::string& file, std::string pointer = {})
      : value_(&value), file_(&file), pointer_(std::move(pointer)) {}

  [[nodiscard]] const std::string& pointer() const { return pointer_; }
  [[nodiscard]] const std::string& file() const { return *file_; }

  [[noreturn]] void fail(const std::string& complaint) const { throw file_error(*file_, pointer_, complaint); }
  [[noreturn]] void expected(const std::string& what) const { fail("found " + found(*value_) + ", expected " + what); }

  [[nodiscard]] bool is_null() const { return value_->is_null(); }

  // ---- objects

  const json_value& object() const {
    if (!value_->is_object()) expected("an object");
    return *this;
  }

  /// An object with no key but these.
  const json_value& object(std::initializer_list<std::string_view> known) const {
    object();
    for (const auto& [key, ignored] : value_->items()) {
      if (std::find(known.begin(), known.end(), key) == known.end())
        throw file_error(*file_, pointer_to(pointer_, key), "unknown key; " + suggestion(key, known));
    }
    return *this;
  }

  [[nodiscard]] bool has(std::string_view key) const { return value_->is_object() && value_->contains(key); }

  /// The member of an object.
  /// Throws: file_error if it is not there.
  [[nodiscard]] json_value at(std::string_view key) const {
    if (!has(key)) throw file_error(*file_, pointer_to(pointer_, key), "missing, this key is required");
    return {*value_->find(key), *file_, pointer_to(pointer_, key)};
  }

  [[nodiscard]] std::optional<json_value> find(std::string_view key) const {
    if (!has(key)) return std::nullopt;
    return at(key);
  }

  /// `visit(name, value)` for each member of an object.
  template <class Visit>
  void members(Visit visit) const {
    object();
    for (const auto& [key, value] : value_->items()) visit(key, json_value(value, *file_, pointer_to(pointer_, key)));
  }

  // ---- arrays

  [[nodiscard]] std::size_t size() const {
    if (!value_->is_array()) expected("an array");
    return value_->size();
  }

  /// Requires: an array, and i within it.
  [[nodiscard]] json_value operator[](std::size_t i) const {
    return {(*value_)[i], *file_, pointer_to(pointer_, std::to_string(i))};
  }

  /// An array of a given size.
  const json_value& sized(std::size_t count, const std::string& per) const {
    if (size() != count)
      fail("found " + std::to_string(size()) + " entries, expected " + std::to_string(count) + " (one per " + per + ")");
    return *this;
  }

  /// What `read(element)` makes of each element of an array.
  template <class Read>
  [[nodiscard]] auto list(Read read) const {
    std::vector<decltype(read(std::declval<json_value>()))> values;
    values.reserve(size());
    for (std::size_t i = 0; i < size(); ++i) values.push_back(read((*this)[i]));
    return values;
  }

  // ---- scalars

  [[nodiscard]] std::string text() const {
    if (!value_->is_string()) expected("a string");
    return value_->get<std::string>();
  }

  /// A string of at least one and at most 256 bytes without control characters.
  [[nodiscard]] std::string name() const {
    auto value = text();
    const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20; };
    if (value.empty() || value.size() > 256 || std::any_of(value.begin(), value.end(), control))
      expected("a name of 1 to 256 bytes without control characters");
    return value;
  }

  [[nodiscard]] bool boolean() const {
    if (!value_->is_boolean()) expected("true or false");
    return value_->get<bool>();
  }

  /// A finite number in [low, high].
  [[nodiscard]] double number(double low = 0, double high = max_json_number) const {
    const auto range = [&] { return "a number in [" + nlohmann::json(low).dump() + ", " + nlohmann::json(high).dump() + "]"; };
    if (!value_->is_number()) expected(range());
    const double value = value_->get<double>();
    if (!(value >= low && value <= high)) expected(range());
    return value;
  }

  /// A finite number above 0.
  [[nodiscard]] double positive(double high = max_json_number) const {
    if (value_->is_number() && !(value_->get<double>() > 0)) expected("a number above 0");
    return number(0, high);
  }

  /// A whole number in [low, high]; 64.0 and 1e3 count as whole.
  [[nodiscard]] std::int64_t integer(std::int64_t low, std::int64_t high) const;

  /// A whole number in [low, high], for counts.
  [[nodiscard]] int count(int low = 1, int high = 1'000'000) const { return static_cast<int>(integer(low, high)); }

  /// A whole number of bytes.
  [[nodiscard]] bytes_t bytes() const { return integer(0, bytes_t{1} << 60); }

 private:
  static std::string found(const nlohmann::json& value);

  const nlohmann::json* value_;
  const std::string* file_;
  std::string pointer_;
};

/// A parsed document and the name that its messages use.
struct json_document {
  std::string file;
  nlohmann::json root;

  json_document(std::string_view text, std::string_view file_name) : file(file_name) {
    if (text.size() > max_json_bytes)
      throw file_error(file, {},
                       "found " + std::to_string(text.size()) + " bytes, expected at most " + std::to_string(max_json_bytes));
    json_builder builder(file);
    nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
    root = builder.take();
  }

  [[nodiscard]] json_value value() const { return {root, file}; }

  /// The version of a document of a format of ours: 1 ... `latest`.
  [[nodiscard]] int version_of(const std::string& kind, int latest) const;

  /// The document as an object of version 1 of a format of ours, with no keys but these.
  [[nodiscard]] json_value format(const std::string& kind, std::initializer_list<std::string_view> keys) const {
    (void)version_of(kind, 1);
    return with_keys(keys);
  }

  /// The document as an object with no keys but `format`, `version` and these.
  [[nodiscard]] json_value with_keys(std::initializer_list<std::string_view> keys) const {
    const auto top = value();
    std::vector<std::string_view> known{"format", "version"};
    known.insert(known.end(), keys);
    top.members([&](const std::string& key, const json_value& member) {
      if (std::find(known.begin(), known.end(), key) == known.end()) member.fail("unknown key; " + suggestion(key, known));
    });
    return top;
  }

 private:
  static constexpr std::int64_t max_version = 1'000'000'000;
};

/// A double near `guess` whose image under `forward` is `value`, else `guess`: so numbers written in another unit come back
/// bit for bit.
template <class Forward>
[[nodiscard]] double preimage(double value, double guess, Forward forward) {
  double up = guess;
  double down = guess;
  for (int i = 0; i < 4; ++i) {
    if (forward(up) == value) return up;
    if (forward(down) == value) return down;
    up = std::nextafter(up, std::numeric_limits<double>::infinity());
    down = std::nextafter(down, -std::numeric_limits<double>::infinity());
  }
  return guess;
}

/// The text of a document, two spaces per level, with a newline at the end. Bytes that are not UTF-8 are replaced.
[[nodiscard]] inline std::string dump(const nlohmann::ordered_json& document) {
  return document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

}  // namespace detail

/// The contents of a file of at most max_json_bytes; `-` is standard input.
/// Throws: file_error if it cannot be read.
[[nodiscard]] std::string read_text(const std::string& path);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/json_reader.ipp>
#endif
