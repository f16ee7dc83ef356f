// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <hetsched/core/compiled.hpp>
#include <hetsched/core/error.hpp>
#include <hetsched/core/tolerances.hpp>
#include <hetsched/schedule/pipeline.hpp>

namespace hetsched {

HETSCHED_INLINE pipeline forward_part(pipeline p) {
  validate(p);
  p.backward_s.assign(p.backward_s.size(), 0);
  p.gradient_transfer_s.assign(p.transfer_s.size(), 0);
  p.weight_backward_s.clear();
  p.gradient_transfer_occupied_s.clear();
  return p;
}

HETSCHED_INLINE void validate(const pipeline& p) {
  const auto s = p.forward_s.size();
  if (s == 0) throw input_error("a pipeline needs at least one stage");
  if (p.backward_s.size() != s) throw input_error("backward_s needs one entry per stage");
  if (p.transfer_s.size() != s - 1) throw input_error("transfer_s needs one entry per boundary (stages - 1)");
  if (!p.gradient_transfer_s.empty() && p.gradient_transfer_s.size() != s - 1)
    throw input_error("gradient_transfer_s needs one entry per boundary (stages - 1), or none");
  const auto check = [](const std::vector<double>& times, const char* name) {
    for (std::size_t i = 0; i < times.size(); ++i)
      if (!(times[i] >= 0 && times[i] < longest_time_s))
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
