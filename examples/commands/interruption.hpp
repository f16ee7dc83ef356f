// SPDX-License-Identifier: Apache-2.0
// Ctrl-C for commands that take long: the first one asks them to come to an end, the second one ends them.
#pragma once

#include <atomic>
#include <csignal>

namespace command {

/// The signal that has asked for an end; 0: none has.
inline std::atomic<int> interruption = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler sets it");

[[nodiscard]] inline bool interrupted() { return interruption != 0; }

inline void handle_signals(void (*handler)(int), int flags) {
  struct sigaction how = {};
  how.sa_handler = handler;
  how.sa_flags = flags;
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before = {};
    // nohup wants no hang-up to be heard of.
    if (signal == SIGHUP && ::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    ::sigaction(signal, &how, nullptr);
  }
}

extern "C" inline void note_interruption(int signal) {
  interruption = signal;
  handle_signals(SIG_DFL, 0);
}

/// From now on, the first SIGINT, SIGTERM or SIGHUP sets what interrupted() tells, and the second one ends the process at once.
/// Any thread may call it, again too: after somebody else has taken the signals, say. Once interrupted, it leaves them as they
/// are.
inline void listen_to_signals() {
  if (!interrupted()) handle_signals(note_interruption, SA_RESTART);
}

}  // namespace command
