// SPDX-License-Identifier: Apache-2.0
// What checkpoints say of a training.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include <nlohmann/json.hpp>

#include <hetsched/core/checksum.hpp>

#include <train/boundaries.hpp>
#include <train/checkpoint.hpp>
#include <train/training.hpp>

namespace train {

[[nodiscard]] inline training_notes notes_of(const job& j, const hetsched::plan& p) {
  const auto number = [](double value) { return nlohmann::json(value).dump(); };
  auto optimizer = j.given.optimizer;
  if (optimizer == "sgd" && j.given.momentum != 0) optimizer += " with momentum";
  training_notes notes{{"model", describe(j.config)},
                       {"precision", j.given.model.precision},
                       {"optimizer", optimizer},
                       {"learning rate", number(j.given.learning_rate)},
                       {"momentum", number(j.given.momentum)},
                       {"weight decay", number(j.given.weight_decay)},
                       {"clip", number(j.given.clip)},
                       {"seed", std::to_string(j.given.model.seed)},
                       {"batch", batch_text(p, j.given.accumulate)},
                       {"text", std::to_string(j.corpus.size()) + " bytes, " +
                                    hetsched::detail::hexadecimal(hetsched::crc64(std::as_bytes(std::span(j.corpus))))}};
  if (wants_half_boundaries(j)) notes["boundaries"] = "bf16";
  if (j.given.decay != "constant" || j.given.warmup > 0)
    notes["learning rate's decay"] = j.given.decay + " to " + number(j.given.rate_floor) + " at step " +
                                     std::to_string(j.given.steps) + " behind " + std::to_string(j.given.warmup) +
                                     " steps of warm-up";
  return notes;
}

}  // namespace train
