// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/gloo/detail/meeting.hpp>
#include <hetsched/gloo/folder_store.hpp>

namespace hetsched {

HETSCHED_INLINE folder_store::folder_store(std::filesystem::path folder, bool makes_it) : folder_(std::move(folder)) {
  if (!makes_it) {
    if (!is_there()) throw error(folder_.string() + " is not there");
    return;
  }
  std::error_code why;
  std::filesystem::create_directories(folder_, why);
  if (why) throw error(folder_.string() + " cannot be made: " + why.message());
}

HETSCHED_INLINE std::filesystem::path folder_store::at(const std::string& name) const {
  // For people, and not to be taken for another.
  constexpr std::string_view plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.-_";
  constexpr std::size_t most = 100;
  auto file = name.substr(0, most) + '-' + detail::name_hash(name);
  for (auto& c : file)
    if (plain.find(c) == plain.npos) c = '_';
  return folder_ / file;
}

HETSCHED_INLINE void folder_store::set(const std::string& name, const std::vector<char>& value) {
  const auto whole = at(name);
  const std::filesystem::path part = whole.string() + "." + detail::fresh_nonce();
  const auto fail = [&](const std::string& why) {
    std::error_code ignored;
    std::filesystem::remove(part, ignored);
    throw error("\"" + name + "\" in " + folder_.string() + why);
  };
  errno = 0;
  std::ofstream out(part, std::ios::binary);
  out.write(value.data(), static_cast<std::streamsize>(value.size()));
  out.close();
  if (!out) fail(" cannot be written: " + std::generic_category().message(errno));
  // A second name is given to one writer only, and what has it is whole. Where there are none, a look before has to do.
  std::error_code why;
  std::filesystem::create_hard_link(part, whole, why);
  if (why && why != std::errc::file_exists) {
    if (check(name))
      why = std::make_error_code(std::errc::file_exists);
    else
      std::filesystem::rename(part, whole, why);
  }
  if (why == std::errc::file_exists) fail(" is there already");
  if (why) fail(" cannot be written: " + why.message());
  std::filesystem::remove(part, why);
  own_.push_back(whole);
}

HETSCHED_INLINE std::vector<char> folder_store::get(const std::string& name) {
  std::ifstream in(at(name), std::ios::binary);
  if (!in) throw error("\"" + name + "\" is not in " + folder_.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

HETSCHED_INLINE bool folder_store::check(const std::string& name) const {
  std::error_code ignored;
  return std::filesystem::exists(at(name), ignored);
}

HETSCHED_INLINE bool folder_store::is_there() const {
  std::error_code ignored;
  return std::filesystem::status(folder_, ignored).type() != std::filesystem::file_type::not_found;
}

HETSCHED_INLINE void folder_store::wait(const std::vector<std::string>& names, const std::chrono::milliseconds& at_most) {
  constexpr std::chrono::milliseconds pause(10);
  const auto until = std::chrono::steady_clock::now() + at_most;
  for (const auto& name : names)
    while (!check(name)) {
      const auto now = std::chrono::steady_clock::now();
      if (now >= until) throw error("\"" + name + "\" has not come to " + folder_.string());
      std::this_thread::sleep_for(std::min<std::chrono::steady_clock::duration>(pause, until - now));
    }
}

HETSCHED_INLINE void folder_store::forget() {
  std::error_code ignored;
  for (const auto& path : std::exchange(own_, {})) std::filesystem::remove(path, ignored);
}

}  // namespace hetsched
