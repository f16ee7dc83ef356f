// SPDX-License-Identifier: Apache-2.0
// Layers that go on with texts, compiled once beside those that train.
#pragma once

#include <gpt/inference.hpp>

extern template class gpt::cached_layer<float>;
extern template class gpt::cached_layer<double>;
