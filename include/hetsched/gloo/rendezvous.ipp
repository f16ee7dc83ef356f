// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <string_view>
#include <system_error>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/gloo/folder_store.hpp>
#include <hetsched/gloo/rendezvous.hpp>
#include <hetsched/gloo/torch_store.hpp>

namespace hetsched::detail {

/// What a rendezvous may be, for messages.
inline constexpr std::string_view store_texts = "file:FOLDER, redis://HOST:PORT or torch://HOST:PORT";

HETSCHED_INLINE store_place parse_store(const std::string& text) {
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

HETSCHED_INLINE std::string gloo_text(const std::exception& e) {
  std::string text = e.what();
  if (text.starts_with("["))
    if (const auto end = text.find("] "); end != std::string::npos) text.erase(0, end + 2);
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

}  // namespace hetsched::detail

namespace hetsched {

HETSCHED_INLINE gloo_store open_gloo_store(const std::string& where) {
  const auto place = detail::parse_store(where);
  try {
    if (place.kind == detail::store_place::redis)
      return std::make_shared<::gloo::rendezvous::RedisStore>(place.path_or_host, place.port);
    if (place.kind == detail::store_place::torch) return std::make_shared<torch_store>(place.path_or_host, place.port);
    return std::make_shared<folder_store>(place.path_or_host);
  } catch (const std::exception& e) {
    throw error("the rendezvous " + where + " cannot be opened: " + detail::gloo_text(e));
  }
}

}  // namespace hetsched
