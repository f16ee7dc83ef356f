// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule.hpp>

int main() { return hetsched::one_f_one_b({2, 1}, 8).ranks; }
