// SPDX-License-Identifier: Apache-2.0
// Compiled by itself, as the only one with the fallback.
#define HETSCHED_VIEWS_FALLBACK
#include "views_test.cpp"
