// SPDX-License-Identifier: Apache-2.0
// Of one header of the component: all of them are compiled elsewhere.
#include <hetsched/io/json/pipeline_json.hpp>

int main() {
  const auto file = hetsched::parse_pipeline(R"({"format": "hetsched/pipeline", "version": 1, "microbatches": 8,
    "forward_s": [1, 1], "backward_s": [2, 2], "transfer_s": [0.5]})",
                                             "inline.json");
  return file.microbatches == 8 && hetsched::parse_pipeline(hetsched::to_json(file), "again.json") == file ? 0 : 1;
}
