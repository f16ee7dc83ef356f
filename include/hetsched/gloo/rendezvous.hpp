// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/process_place_test.cpp.

#include <charconv>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>

// Gloo's header asks for <hiredis.h> in the include path unless told so.
#ifndef HIREDIS_NESTED_INCLUDE
#define HIREDIS_NESTED_INCLUDE
#endif
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/hash_store.h>
#include <gloo/rendezvous/redis_store.h>
#include <gloo/rendezvous/store.h>

#include <hetsched/core/error.hpp>
#include <hetsched/gloo/torch_store.hpp>

namespace hetsched {

/// Where ranks leave their addresses for each other.
using gloo_store = std::shared_ptr<::gloo::rendezvous::Store>;

/// A store for ranks that are threads of one process.
[[nodiscard]] inline gloo_store make_process_store() { return std::make_shared<::gloo::rendezvous::HashStore>(); }

namespace detail {

struct store_place {
  enum { file, redis, torch } kind = file;
  std::string path_or_host;
  int port = 0;
};

/// What a rendezvous may be, for messages.
inline constexpr std::string_view store_texts = "file:FOLDER, redis://HOST:PORT or torch://HOST:PORT";

/// Parses "file:FOLDER", "redis://HOST", "redis://HOST:PORT" or "torch://HOST:PORT".
[[nodiscard]] inline store_place parse_store(const std::string& text) {
  const auto bad = [&](const char* why) {
    return input_error("rendezvous \"" + text + "\" " + why + ": write " + std::string(store_texts));
  };
  constexpr std::string_view file = "file:", redis = "redis://", torch = "torch://";
  store_place found;
  if (text.starts_with(file)) {
    found.path_or_host = text.substr(file.size());
    if (found.path_or_host.starts_with("//")) found.path_or_host.erase(0, 2);
    if (found.path_or_host.empty()) throw bad("names no folder");
    return found;
  }
  if (text.starts_with(redis))
    found = {store_place::redis, text.substr(redis.size()), 6379};
  else if (text.starts_with(torch))
    found = {store_place::torch, text.substr(torch.size()), 0};
  else
    throw bad("is of no known kind");
  if (const auto colon = found.path_or_host.rfind(':'); colon != std::string::npos && !found.path_or_host.ends_with(']')) {
    const std::string port = found.path_or_host.substr(colon + 1);
    found.path_or_host.erase(colon);
    const auto end = port.data() + port.size();
    const auto [stop, problem] = std::from_chars(port.data(), end, found.port);
    if (problem != std::errc() || stop != end) found.port = 0;
  }
  if (found.port < 1 || found.port > 65535) throw bad("has no port of 1 to 65535");
  if (found.path_or_host.starts_with('[') && found.path_or_host.ends_with(']'))  // of IPv6
    found.path_or_host = found.path_or_host.substr(1, found.path_or_host.size() - 2);
  if (found.path_or_host.empty()) throw bad("names no host");
  return found;
}

/// What Gloo says, without the place in its sources.
[[nodiscard]] inline std::string gloo_text(const std::exception& e) {
  std::string text = e.what();
  if (text.starts_with("["))
    if (const auto end = text.find("] "); end != std::string::npos) text.erase(0, end + 2);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

}  // namespace detail

/// Opens "file:FOLDER" (shared by all hosts; made if it is not there), "redis://HOST:PORT" (port 6379 if left out) or
/// "torch://HOST:PORT", which is PyTorch's TCPStore; an address of IPv6 in brackets.
/// Throws: input_error for other texts, error if it cannot be opened.
[[nodiscard]] inline gloo_store open_gloo_store(const std::string& where) {
  const auto place = detail::parse_store(where);
  try {
    if (place.kind == detail::store_place::redis)
      return std::make_shared<::gloo::rendezvous::RedisStore>(place.path_or_host, place.port);
    if (place.kind == detail::store_place::torch) return std::make_shared<torch_store>(place.path_or_host, place.port);
    std::filesystem::create_directories(place.path_or_host);
    return std::make_shared<::gloo::rendezvous::FileStore>(place.path_or_host);
  } catch (const std::exception& e) {
    throw error("the rendezvous " + where + " cannot be opened: " + detail::gloo_text(e));
  }
}

}  // namespace hetsched
