// SPDX-License-Identifier: Apache-2.0
#include <every_header.hpp>

const void* seen_from_the_other_unit();
const void* seen_from_the_other_unit() { return &hetsched::default_epsilon; }
