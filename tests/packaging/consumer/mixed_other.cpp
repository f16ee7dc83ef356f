// SPDX-License-Identifier: Apache-2.0
// Of a program whose other translation unit has its definitions from the library; this one brings its own.
#include "mixed.hpp"

#ifdef HETSCHED_COMPILED
#error "this unit should have the definitions"
#endif

double makespan_of_the_other(std::string_view schedule) { return mixed_makespan_s(schedule); }
