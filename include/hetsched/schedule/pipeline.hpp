// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/schedule/builders/period_test.cpp.

#include <cstddef>
#include <string>
#include <vector>

#include <hetsched/core/error.hpp>

namespace hetsched {

/// The times of one microbatch on S stages, in seconds. Stage 0 is the first in the forward direction;
/// boundary i lies between stages i and i + 1.
struct pipeline {
  std::vector<double> forward_s;                 ///< S
  std::vector<double> backward_s;                ///< S
  std::vector<double> transfer_s;                ///< S - 1: activation, downstream
  std::vector<double> gradient_transfer_s = {};  ///< S - 1, or empty: as transfer_s
  std::vector<double> weight_backward_s = {};    ///< S, or empty: of backward_s, the part that is the weight gradient
  std::vector<double> activation_bytes = {};     ///< S, or empty (1 each): held per microbatch in flight
  /// S - 1, or empty: of transfer_s, until the next activation can set out; empty: all of it. Less where a transfer has phases on
  /// different ports. Two numbers are all there is to tell: through stations that take d_1, d_2, ... of every tensor in turn, the
  /// m-th arrives when it sets out plus the sum of d, but not before the one ahead of it plus the largest d.
  std::vector<double> transfer_occupied_s = {};
  /// The same of gradients; empty: as activations if gradients take as long as these, else all of gradient_transfer_s.
  std::vector<double> gradient_transfer_occupied_s = {};

  [[nodiscard]] int stages() const { return static_cast<int>(forward_s.size()); }
  /// Compute time of stage i: t_i = f_i + b_i.
  [[nodiscard]] double compute_s(int i) const { return forward_s[at(i)] + backward_s[at(i)]; }
  [[nodiscard]] double activation_s(int i) const { return transfer_s[at(i)]; }
  [[nodiscard]] double gradient_s(int i) const {
    return gradient_transfer_s.empty() ? transfer_s[at(i)] : gradient_transfer_s[at(i)];
  }
  /// Both ways over boundary i: the 2c_i of the papers.
  [[nodiscard]] double round_trip_s(int i) const { return activation_s(i) + gradient_s(i); }
  /// Until the next tensor can set out over boundary i.
  [[nodiscard]] double activation_occupied_s(int i) const {
    return transfer_occupied_s.empty() ? activation_s(i) : transfer_occupied_s[at(i)];
  }
  [[nodiscard]] double gradient_occupied_s(int i) const {
    if (!gradient_transfer_occupied_s.empty()) return gradient_transfer_occupied_s[at(i)];
    return gradient_transfer_s.empty() ? activation_occupied_s(i) : gradient_s(i);
  }
  /// The longer of both: the least period of boundary i.
  [[nodiscard]] double occupied_s(int i) const {
    const double there_s = activation_occupied_s(i), back_s = gradient_occupied_s(i);
    return there_s < back_s ? back_s : there_s;
  }
  /// The dearer way over boundary i.
  [[nodiscard]] double slower_way_s(int i) const { return activation_s(i) < gradient_s(i) ? gradient_s(i) : activation_s(i); }

  friend bool operator==(const pipeline&, const pipeline&) = default;

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }
};

/// What inference takes of a pipeline: nothing goes back.
[[nodiscard]] inline pipeline forward_part(pipeline p) {
  p.backward_s.assign(p.backward_s.size(), 0);
  p.gradient_transfer_s.assign(p.transfer_s.size(), 0);
  p.weight_backward_s.clear();
  p.gradient_transfer_occupied_s.clear();
  return p;
}

/// Checks a pipeline.
/// Throws: input_error unless the sizes agree, S >= 1, every time is finite and not negative, and no part longer than the whole.
inline void validate(const pipeline& p) {
  const auto s = p.forward_s.size();
  if (s == 0) throw input_error("a pipeline needs at least one stage");
  if (p.backward_s.size() != s) throw input_error("backward_s needs one entry per stage");
  if (p.transfer_s.size() != s - 1) throw input_error("transfer_s needs one entry per boundary (stages - 1)");
  if (!p.gradient_transfer_s.empty() && p.gradient_transfer_s.size() != s - 1)
    throw input_error("gradient_transfer_s needs one entry per boundary (stages - 1), or none");
  const auto check = [](const std::vector<double>& times, const char* name) {
    for (std::size_t i = 0; i < times.size(); ++i)
      if (!(times[i] >= 0 && times[i] < 1e300))
        throw input_error(std::string(name) + "[" + std::to_string(i) + "] is not a finite time >= 0");
  };
  const auto check_part = [](const std::vector<double>& part, const std::vector<double>& whole, const char* name,
                             const char* of) {
    for (std::size_t i = 0; i < part.size(); ++i)
      if (part[i] > whole[i]) throw input_error(std::string(name) + "[" + std::to_string(i) + "] is more than " + of);
  };
  check(p.forward_s, "forward_s");
  check(p.backward_s, "backward_s");
  check(p.transfer_s, "transfer_s");
  check(p.gradient_transfer_s, "gradient_transfer_s");
  if (!p.weight_backward_s.empty() && p.weight_backward_s.size() != s)
    throw input_error("weight_backward_s needs one entry per stage, or none");
  check(p.weight_backward_s, "weight_backward_s");
  check_part(p.weight_backward_s, p.backward_s, "weight_backward_s", "the stage's backward_s");
  for (const auto* occupied : {&p.transfer_occupied_s, &p.gradient_transfer_occupied_s}) {
    const bool back = occupied == &p.gradient_transfer_occupied_s;
    const char* name = back ? "gradient_transfer_occupied_s" : "transfer_occupied_s";
    if (!occupied->empty() && occupied->size() != s - 1)
      throw input_error(std::string(name) + " needs one entry per boundary (stages - 1), or none");
    check(*occupied, name);
    check_part(*occupied, back && !p.gradient_transfer_s.empty() ? p.gradient_transfer_s : p.transfer_s, name,
               "the whole transfer takes");
  }
  if (!p.activation_bytes.empty() && p.activation_bytes.size() != s)
    throw input_error("activation_bytes needs one entry per stage, or none");
  check(p.activation_bytes, "activation_bytes");
}

}  // namespace hetsched
