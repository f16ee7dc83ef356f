// SPDX-License-Identifier: Apache-2.0
#include <every_header.hpp>

// Weak: the one thing that may be there twice.
[[gnu::weak]] const void* seen_from_the_other_unit();
const void* seen_from_the_other_unit() { return &hetsched::default_epsilon; }
