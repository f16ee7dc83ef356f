// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/runtime/communicator/communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>

namespace hetsched::detail {

HETSCHED_INLINE std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

HETSCHED_INLINE bool is_communication_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const communication_error&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace hetsched::detail
