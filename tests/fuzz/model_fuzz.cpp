// SPDX-License-Identifier: Apache-2.0
// Whatever the bytes, the reader of model.json either throws input_error or returns a model.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include <hetsched/io/json/model_json.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    (void)hetsched::parse_model(text, "input");
  } catch (const hetsched::input_error&) {
  }
  return 0;
}
