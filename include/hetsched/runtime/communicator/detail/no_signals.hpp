// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/gloo/gloo_communicator_test.cpp.

#include <pthread.h>
#include <signal.h>

namespace hetsched::detail {

/// Blocks all signals of this thread while it lives, and so of threads that it makes: signals are for the threads of the caller.
class no_signals {
 public:
  no_signals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~no_signals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  no_signals(const no_signals&) = delete;
  no_signals& operator=(const no_signals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace hetsched::detail
