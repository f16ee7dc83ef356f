// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/process_place_test.cpp.

#include <exception>
#include <memory>
#include <string>

// Gloo's header asks for <hiredis.h> in the include path unless told so.
#ifndef HIREDIS_NESTED_INCLUDE
#define HIREDIS_NESTED_INCLUDE
#endif
#include <gloo/rendezvous/hash_store.h>
#include <gloo/rendezvous/redis_store.h>
#include <gloo/rendezvous/store.h>

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

/// Parses "file:FOLDER", "redis://HOST", "redis://HOST:PORT" or "torch://HOST:PORT".
[[nodiscard]] store_place parse_store(const std::string& text);

/// What Gloo says, without the place in its sources.
[[nodiscard]] std::string gloo_text(const std::exception& e);

}  // namespace detail

/// Opens "file:FOLDER" (shared by all hosts; made if it is not there), "redis://HOST:PORT" (port 6379 if left out) or
/// "torch://HOST:PORT", which is PyTorch's TCPStore; an address of IPv6 in brackets.
/// Throws: input_error for other texts, error if it cannot be opened.
[[nodiscard]] gloo_store open_gloo_store(const std::string& where);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/gloo/rendezvous.ipp>
#endif
