// SPDX-License-Identifier: Apache-2.0
#pragma once

// Tests of this folder are compiled twice: with range-v3, and from fallback_test.cpp with what nvcc gets in its place.
#ifdef HETSCHED_VIEWS_FALLBACK
#define VIEWS "fallback: "
#else
#define VIEWS "range-v3: "
#endif
