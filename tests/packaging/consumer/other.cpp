// SPDX-License-Identifier: Apache-2.0
#include <hetsched/hetsched.hpp>

#include <vector>

std::vector<int> warmups_of(const hetsched::pipeline& p);
std::vector<int> warmups_of(const hetsched::pipeline& p) { return hetsched::warmup_counts(hetsched::warmup_rule::exact, p); }
