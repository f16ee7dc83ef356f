// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include <nlohmann/json.hpp>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/index.hpp>
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
  if (name.size() < 2 || name.size() > 64) return std::nullopt;
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
  const bool most = !shorter.empty() && 2 * plain(shorter.front()).size() > letters.size();  // of what was written
  if (const auto guess = nearest(name, known); guess && !most) return {*guess};
  return shorter;
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

namespace detail {

/// What no text begins with, and what the text in it can be had by.
struct packed_form {
  std::string_view begins, is, remedy;
};
inline constexpr std::string_view as_csv = "write the table as CSV";
inline constexpr packed_form packed_forms[] = {
    {"\x1f\x8b", "gzip", "gunzip -c makes it one, and - reads that from standard input"},
    {"\x28\xb5\x2f\xfd", "zstd", "zstdcat makes it one, and - reads that from standard input"},
    {"\xfd"
     "7zXZ",
     "xz", "xzcat makes it one, and - reads that from standard input"},
    {"BZh91AY", "bzip2", "bzcat makes it one, and - reads that from standard input"},
    {"\x04\x22\x4d\x18", "lz4", "lz4cat makes it one, and - reads that from standard input"},
    {"PK\x03\x04", "zip, as workbooks are", "unzip it, or save the table as CSV"},
    {"\xd0\xcf\x11\xe0", "a workbook of Excel's old kind", "save the table as CSV"},
    {"PAR1", "Parquet", as_csv},
    {"ARROW1", "Arrow or Feather", as_csv},
    {"Obj\x01", "Avro", as_csv},
    {"\x89HDF", "HDF5", as_csv},
    {"SQLite format 3", "SQLite", as_csv},
    {"\x93NUMPY", "NumPy", "write it as a text"},
    {"\x80\x02", "pickle", "write it as a text"},
    {"\x80\x03", "pickle", "write it as a text"},
    {"\x80\x04", "pickle", "write it as a text"},
    {"\x80\x05", "pickle", "write it as a text"},
    {"%PDF", "PDF", "save it as a text"},
};

/// The encoding of a text of more than one byte a character, by its mark or by the zeros of its first letters; else nothing.
[[nodiscard]] inline std::string_view wide_encoding(std::string_view text) {
  const auto zero = [&](std::size_t i) { return i < text.size() && text[i] == '\0'; };
  if (text.starts_with(std::string_view("\xff\xfe\0\0", 4)) || text.starts_with(std::string_view("\0\0\xfe\xff", 4)))
    return "UTF-32";
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) return "UTF-16";
  const int zeros = zero(0) + zero(1) + zero(2) + zero(3);
  return text.size() < 4 || zeros == 0 || zeros == 4 ? "" : zeros == 3 ? "UTF-32" : zero(0) != zero(1) ? "UTF-16" : "";
}

}  // namespace detail

HETSCHED_INLINE std::string read_text(const std::string& path) {
  std::error_code unknown;
  if (path != "-" && std::filesystem::is_directory(path, unknown)) throw file_error(path, {}, "is a folder, expected a file");
  std::ifstream in(path == "-" ? "/dev/stdin" : path, std::ios::binary);
  if (!in) throw file_error(path, {}, "cannot be opened");
  std::string text;
  char buffer[1 << 16];
  while (in.read(buffer, sizeof buffer), in.gcount() > 0) {
    text.append(buffer, as_size(in.gcount()));
    if (text.size() > max_json_bytes)
      throw file_error(path, {}, "is larger than " + std::to_string(max_json_bytes >> 20) + " MiB");
  }
  if (in.bad()) throw file_error(path, {}, "cannot be read");
  for (const auto& form : detail::packed_forms)
    if (text.starts_with(form.begins))
      throw file_error(path, {}, "is packed (" + std::string(form.is) + "), expected a text: " + std::string(form.remedy));
  if (const auto wide = detail::wide_encoding(text); !wide.empty())
    throw file_error(path, {}, "is in " + std::string(wide) + ", expected UTF-8 (Excel: CSV UTF-8)");
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  return text;
}

}  // namespace hetsched

namespace hetsched::detail {

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

  json* put(json value) {
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

  bool place(json value) {
    put(std::move(value));
    return true;
  }

  bool open(json container) {
    if (open_.size() >= as_size(max_json_depth)) fail(here(), "nested deeper than " + std::to_string(max_json_depth) + " levels");
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

HETSCHED_INLINE void json_value::expected(const std::string& what) const {
  fail("found " + found(*value_) + ", expected " + what);
}

HETSCHED_INLINE json_kind json_value::kind() const {
  if (value_->is_null()) return json_kind::null;
  if (value_->is_boolean()) return json_kind::boolean;
  if (value_->is_number()) return json_kind::number;
  if (value_->is_string()) return json_kind::text;
  return value_->is_array() ? json_kind::list : json_kind::object;
}

HETSCHED_INLINE std::string json_value::source() const { return value_->dump(); }

HETSCHED_INLINE bool json_value::is_nothing() const {
  const auto what = kind();
  return what == json_kind::boolean  ? !value_->get<bool>()
         : what == json_kind::number ? value_->get<double>() == 0
         : what == json_kind::text   ? value_->get<std::string>().empty()
                                     : value_->empty();
}

HETSCHED_INLINE const json_value& json_value::object() const {
  if (!value_->is_object()) expected("an object");
  return *this;
}

HETSCHED_INLINE const json_value& json_value::object(std::initializer_list<std::string_view> known) const {
  return object(std::vector<std::string_view>(known));
}

HETSCHED_INLINE const json_value& json_value::object(const std::vector<std::string_view>& known) const {
  object();
  for (const auto& [key, ignored] : value_->items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw file_error(*file_, pointer_to(pointer_, key), "unknown key; " + suggestion(key, known));
  }
  return *this;
}

HETSCHED_INLINE bool json_value::has(std::string_view key) const { return value_->is_object() && value_->contains(key); }

HETSCHED_INLINE json_value json_value::at(std::string_view key) const {
  if (!has(key)) throw file_error(*file_, pointer_to(pointer_, key), "missing, this key is required");
  return {*value_->find(key), *file_, pointer_to(pointer_, key)};
}

HETSCHED_INLINE std::optional<json_value> json_value::find(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  return at(key);
}

HETSCHED_INLINE void json_value::each_member(function_ref<void(const std::string&, const json_value&)> visit) const {
  object();
  for (const auto& [key, value] : value_->items()) visit(key, json_value(value, *file_, pointer_to(pointer_, key)));
}

HETSCHED_INLINE std::size_t json_value::size() const {
  if (!value_->is_array()) expected("an array");
  return value_->size();
}

HETSCHED_INLINE json_value json_value::operator[](std::size_t i) const {
  return {(*value_)[i], *file_, pointer_to(pointer_, std::to_string(i))};
}

HETSCHED_INLINE const json_value& json_value::sized(std::size_t count, const std::string& per) const {
  if (size() != count)
    fail("found " + std::to_string(size()) + " entries, expected " + std::to_string(count) + " (one per " + per + ")");
  return *this;
}

HETSCHED_INLINE std::string json_value::text() const {
  if (!value_->is_string()) expected("a string");
  return value_->get<std::string>();
}

HETSCHED_INLINE std::string json_value::name() const {
  auto value = text();
  const auto control = [](char c) { return static_cast<unsigned char>(c) < 0x20; };
  if (value.empty() || value.size() > 256 || std::any_of(value.begin(), value.end(), control))
    expected("a name of 1 to 256 bytes without control characters");
  return value;
}

HETSCHED_INLINE bool json_value::boolean() const {
  if (!value_->is_boolean()) expected("true or false");
  return value_->get<bool>();
}

HETSCHED_INLINE double json_value::number(double low, double high) const {
  const auto range = [&] { return "a number in [" + nlohmann::json(low).dump() + ", " + nlohmann::json(high).dump() + "]"; };
  if (!value_->is_number()) expected(range());
  const double value = value_->get<double>();
  if (!(value >= low && value <= high)) expected(range());
  return value;
}

HETSCHED_INLINE double json_value::positive(double high) const {
  if (value_->is_number() && !(value_->get<double>() > 0)) expected("a number above 0");
  return number(0, high);
}

HETSCHED_INLINE json_document::json_document(std::string_view text, std::string_view file_name) : file(file_name) {
  if (text.size() > max_json_bytes)
    throw file_error(file, {},
                     "found " + std::to_string(text.size()) + " bytes, expected at most " + std::to_string(max_json_bytes));
  json_builder builder(file);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  root = std::make_shared<const nlohmann::json>(builder.take());
}

HETSCHED_INLINE json_value json_document::with_keys(std::initializer_list<std::string_view> keys) const {
  const auto top = value();
  std::vector<std::string_view> known{"format", "version"};
  known.insert(known.end(), keys);
  top.members([&](const std::string& key, const json_value& member) {
    if (std::find(known.begin(), known.end(), key) == known.end()) member.fail("unknown key; " + suggestion(key, known));
  });
  return top;
}

HETSCHED_INLINE std::string dump(const nlohmann::ordered_json& document) {
  return document.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + '\n';
}

HETSCHED_INLINE nlohmann::ordered_json document_of(const std::string& text) { return nlohmann::ordered_json::parse(text); }

}  // namespace hetsched::detail
