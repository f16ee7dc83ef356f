// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tested by tests/core/compiled_test.cpp.

// One source, two modes. x.hpp declares; x.ipp defines, and is included at the end of x.hpp, unless HETSCHED_COMPILED is defined:
// then the definitions are in the libraries of the component compiled, which defines it for whoever links them. A definition
// that every includer sees must be inline; one in a library must not be, or nothing would have to emit it.

#ifdef HETSCHED_COMPILED
#define HETSCHED_INLINE
#else
#define HETSCHED_INLINE inline
#endif
