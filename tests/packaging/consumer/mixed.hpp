// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include <hetsched/schedule.hpp>

inline const hetsched::pipeline mixed_pipeline{.forward_s = {1, 2, 1}, .backward_s = {2, 3, 2}, .transfer_s = {0.5, 0.25}};

inline double mixed_makespan_s(std::string_view schedule) {
  return hetsched::simulate(mixed_pipeline, hetsched::build_schedule(schedule, mixed_pipeline, 8)).makespan_s;
}

double makespan_of_the_other(std::string_view schedule);
