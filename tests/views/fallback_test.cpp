// SPDX-License-Identifier: Apache-2.0
// Compiled by itself, as the only one with the fallback.
#define HETSCHED_VIEWS_FALLBACK
#include "plan_test.cpp"
#include "reshard_test.cpp"
#include "schedule_test.cpp"
