// SPDX-License-Identifier: Apache-2.0
#pragma once

// How x.ipp defines what x.hpp declares: as inline functions included at the end of x.hpp, or, where a program links
// hetsched::compiled, which has HETSCHED_COMPILED set, once in that library.
#ifdef HETSCHED_COMPILED
#define HETSCHED_INLINE
#else
#define HETSCHED_INLINE inline
#endif
