// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/search/taper_test.cpp.

#include <span>
#include <vector>

#include <hetsched/cost/questions/price_book.hpp>
#include <hetsched/plan/plan.hpp>

namespace hetsched {

/// The stages' layers cut anew for schedules that may keep more microbatches in flight than 1F1B. No schedule that leaves stages
/// and backwards whole ends before a microbatch has been to a stage and back and that stage has computed all M of them. The cuts
/// are those of the least such bound, max over stages of (what is before the stage, there and back, + M times its time): stages
/// get shorter from the first to the last, and all can end together. Where a schedule splits backwards they are a rule of thumb.
/// Devices, degrees and microbatches stay; what evaluate fills in is left to it. Memory is looked at for 1F1B's least warm-ups.
/// `hastes`: so many times M is taken; more make stages more even.
/// Returns: a pipeline for each of `hastes`, of a bound no greater than that of `own`; the same one where its cuts are the
/// best, a stage lies on several parts of the cluster, or memory is short.
/// Requires: every stage has devices and layers; hastes above 0. With L layers and S stages, of which none takes much longer
/// than the mean: O(L^2) costs and, for each of hastes, 30 times as many steps.
[[nodiscard]] std::vector<pipeline_plan> tapered(price_book& book, const pipeline_plan& own, std::span<const double> hastes);

}  // namespace hetsched

#ifndef HETSCHED_COMPILED
#include <hetsched/search/taper.ipp>
#endif
