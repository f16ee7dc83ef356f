// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <unistd.h>

#include <cstddef>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <hetsched/io/checkpoint/checkpoint.hpp>
#include <hetsched/runtime/trainer/trainer.hpp>
#include <hetsched/schedule/builders/named.hpp>

#include "../../runtime/breaches.hpp"

namespace hetsched::test {

/// A checkpoint of twelve layers loads into twelve on two ranks, whatever their cut, and on both into no other number of them.
template <class Connect>
void check_partial_load(Connect connect) {
  const auto folder = (std::filesystem::temp_directory_path() / ("hetsched_partial_load" + std::to_string(::getpid()))).string();
  std::filesystem::remove_all(folder);
  const auto on_both = [&](int layers, const schedule& order, auto body) {
    auto ends = connect();
    return on_ranks(2, [&](int r) {
      auto& end = ends[static_cast<std::size_t>(r)];
      auto trainer = make_trainer<view_tensor>(
          even_layout(layers, order), [](int) { return breaching_layer(breach::none, 2); },
          [](int) {
            return tensor_shape{2, 2};
          },
          end, adamw{}, {.deadline_s = 20});
      body(trainer, r);
    });
  };
  rethrow_first(
      on_both(12, gpipe(2, 2), [&](auto& trainer, int r) { write_checkpoint_part(folder, 0, r, trainer.state(true)); }));
  commit_checkpoint(folder, 0, 2);
  const auto load = [&](auto& trainer, int) {
    auto slices = trainer.state();
    load_checkpoint(*find_checkpoint(folder).newest, slices);
    trainer.state_loaded();
  };
  rethrow_first(on_both(12, gpipe(2, 2), load));
  rethrow_first(
      on_both(12, build_schedule("interleaved_1f1b", {.forward_s = {1, 1}, .backward_s = {2, 2}, .transfer_s = {0}}, 2), load));
  for (const int layers : {11, 13}) {
    const std::string layer = layers == 11 ? "layer 11, " : "layer 12, ";
    const auto expected = std::string("4 tensors ") + (layers == 11 ? "left over" : "missing") + " (" + layer +
                          "adamw.first_moment.0; " + layer + "adamw.second_moment.0; " + layer + "parameter.0; " + layer +
                          "updates.0)";
    for (const auto& f : on_both(layers, gpipe(2, 2), load)) {
      std::string text;
      try {
        if (f) std::rethrow_exception(f);
      } catch (const input_error& e) {
        text = e.what();
      }
      CAPTURE(text);
      CHECK(text.ends_with(expected));
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace hetsched::test
