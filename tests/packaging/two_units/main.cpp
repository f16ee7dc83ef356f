// SPDX-License-Identifier: Apache-2.0
#include <hetsched/schedule/builders/warmup.hpp>

const void* seen_from_the_other_unit();

// An inline variable is one object, whichever unit looks at it.
int main() { return seen_from_the_other_unit() == &hetsched::default_epsilon ? 0 : 1; }
