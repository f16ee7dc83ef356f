// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <hetsched/core/error.hpp>
#include <hetsched/core/function_ref.hpp>
#include <hetsched/core/tolerances.hpp>
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

/// The names that one may stand for: those equal but for case, '-' and '_'; else, for three letters or more, those that contain
/// it; else the longest that it ends with, if that is most of it ("RTX-A5000"); else the nearest; else the longest that it ends
/// with.
[[nodiscard]] std::vector<std::string_view> names_like(std::string_view name, const std::vector<std::string_view>& known);

/// `did you mean "x" or "y"? Known: a, b, c` for a name that is not among the known ones.
[[nodiscard]] std::string suggestion(std::string_view name, const std::vector<std::string_view>& known);

/// What a value of a document is.
enum class json_kind { null, boolean, number, text, list, object };

/// A value in a document, with its file and its place for messages. Refers to the document and is cheap to copy.
class json_value {
 public:
  json_value(const nlohmann::json& value, const std::string& file, std::string pointer = {})
      : value_(&value), file_(&file), pointer_(std::move(pointer)) {}

  [[nodiscard]] const std::string& pointer() const { return pointer_; }
  [[nodiscard]] const std::string& file() const { return *file_; }

  [[noreturn]] void fail(const std::string& complaint) const { throw file_error(*file_, pointer_, complaint); }
  [[noreturn]] void expected(const std::string& what) const;

  [[nodiscard]] json_kind kind() const;
  [[nodiscard]] bool is_null() const { return kind() == json_kind::null; }
  [[nodiscard]] bool is_text() const { return kind() == json_kind::text; }

  /// As text again, for what is a file within a file.
  [[nodiscard]] std::string source() const;

  /// null, false, 0 or empty.
  [[nodiscard]] bool is_nothing() const;

  // ---- objects

  const json_value& object() const;

  /// An object with no key but these.
  const json_value& object(std::initializer_list<std::string_view> known) const;
  const json_value& object(const std::vector<std::string_view>& known) const;

  [[nodiscard]] bool has(std::string_view key) const;

  /// The member of an object.
  /// Throws: file_error if it is not there.
  [[nodiscard]] json_value at(std::string_view key) const;

  [[nodiscard]] std::optional<json_value> find(std::string_view key) const;

  /// `visit(name, value)` for each member of an object.
  template <class Visit>
  void members(Visit visit) const {
    each_member(visit);
  }

  // ---- arrays

  [[nodiscard]] std::size_t size() const;

  /// Requires: an array, and i within it.
  [[nodiscard]] json_value operator[](std::size_t i) const;

  /// An array of a given size.
  const json_value& sized(std::size_t count, const std::string& per) const;

  /// What `read(element)` makes of each element of an array.
  template <class Read>
  [[nodiscard]] auto list(Read read) const {
    std::vector<decltype(read(std::declval<json_value>()))> values;
    values.reserve(size());
    for (std::size_t i = 0; i < size(); ++i) values.push_back(read((*this)[i]));
    return values;
  }

  // ---- scalars

  [[nodiscard]] std::string text() const;

  /// A string of at least one and at most 256 bytes without control characters.
  [[nodiscard]] std::string name() const;

  [[nodiscard]] bool boolean() const;

  /// A finite number in [low, high].
  [[nodiscard]] double number(double low = 0, double high = max_json_number) const;

  /// A finite number above 0.
  [[nodiscard]] double positive(double high = max_json_number) const;

  /// A whole number in [low, high]; 64.0 and 1e3 count as whole.
  [[nodiscard]] std::int64_t integer(std::int64_t low, std::int64_t high) const;

  /// A whole number in [low, high], for counts.
  [[nodiscard]] int count(int low = 1, int high = 1'000'000) const { return static_cast<int>(integer(low, high)); }

  /// A whole number of bytes.
  [[nodiscard]] bytes_t bytes() const { return integer(0, bytes_t{1} << 60); }

 private:
  void each_member(function_ref<void(const std::string&, const json_value&)> visit) const;
  static std::string found(const nlohmann::json& value);

  const nlohmann::json* value_;
  const std::string* file_;
  std::string pointer_;
};

/// A parsed document and the name that its messages use.
struct json_document {
  std::string file;
  std::shared_ptr<const nlohmann::json> root;  ///< behind a pointer: includers need not know what it is

  json_document(std::string_view text, std::string_view file_name);

  [[nodiscard]] json_value value() const { return {*root, file}; }

  /// The version of a document of a format of ours: 1 ... `latest`.
  [[nodiscard]] int version_of(const std::string& kind, int latest) const;

  /// The document as an object of version 1 of a format of ours, with no keys but these.
  [[nodiscard]] json_value format(const std::string& kind, std::initializer_list<std::string_view> keys) const {
    (void)version_of(kind, 1);
    return with_keys(keys);
  }

  /// The document as an object with no keys but `format`, `version` and these.
  [[nodiscard]] json_value with_keys(std::initializer_list<std::string_view> keys) const;

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
    up = std::nextafter(up, infinity);
    down = std::nextafter(down, -infinity);
  }
  return guess;
}

/// The text of a document, two spaces per level, with a newline at the end. Bytes that are not UTF-8 are replaced.
[[nodiscard]] std::string dump(const nlohmann::ordered_json& document);

/// The document of a text that to_json or dump wrote. Throws nlohmann's parse_error for any other.
[[nodiscard]] nlohmann::ordered_json document_of(const std::string& text);

}  // namespace detail

/// The contents of a file of at most max_json_bytes; `-` is standard input.
/// Throws: file_error if it cannot be read or is packed (gzip, zstd, zip, Parquet): nothing here unpacks.
[[nodiscard]] std::string read_text(const std::string& path);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/io/json_reader.ipp>
#endif
