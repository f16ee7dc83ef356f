// SPDX-License-Identifier: Apache-2.0
#define HETSCHED_VIEWS_FALLBACK
#include "views_test.cpp"
