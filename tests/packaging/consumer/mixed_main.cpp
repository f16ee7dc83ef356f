// SPDX-License-Identifier: Apache-2.0
#include "mixed.hpp"

#ifndef HETSCHED_COMPILED
#error "this unit should declare only"
#endif

int main() {
  for (const auto name : hetsched::schedule_names())
    if (name != "chimera" && name != "dualpipe" && mixed_makespan_s(name) != makespan_of_the_other(name)) return 1;
  return 0;
}
