// SPDX-License-Identifier: Apache-2.0
#include <gpt/inference.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/runtime/communicator/thread_communicator.hpp>
#include <hetsched/runtime/executor/thread_ranks.hpp>
#include <hetsched/runtime/inference/inference_pipeline.hpp>
#include <hetsched/runtime/layer/layer_stack.hpp>

#include "gradient_check.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

std::vector<gpt::config> models() {
  gpt::config plain{.layers = 3, .hidden = 24, .heads = 4, .sequence = 20}, other = plain;
  other.kv_heads = 2;
  other.norm = gpt::norm_kind::rms;
  other.activation = gpt::activation_kind::swiglu;
  other.positions = gpt::position_kind::rotary;
  other.bias = other.tied = false;
  return {plain, other};
}

/// All layers, without caches.
template <class Real>
layer_list<gpt::tensor<Real>, any_layer<gpt::tensor<Real>>> whole(const gpt::config& m) {
  std::vector<any_layer<gpt::tensor<Real>>> layers;
  for (int l = 0; l < gpt::layer_count(m); ++l) layers.push_back(gpt::make_layer<Real>(m, l));
  return layer_list<gpt::tensor<Real>, any_layer<gpt::tensor<Real>>>(std::move(layers));
}

/// Texts that go on from prompts, on ranks whose stages begin with these layers.
std::vector<std::string> texts(const gpt::config& m, const std::vector<int>& cut, const std::vector<std::string>& prompts,
                               const gpt::generate_options& options) {
  using tensor = gpt::tensor<float>;
  std::vector<std::string> found = prompts;
  inference_queue<tensor> queue;
  std::vector<inference_ticket> tickets;
  for (auto& text : found)
    tickets.push_back(queue.submit(gpt::text_request<float>(m, text, options, [&text](char c) { text += c; })));
  queue.close();
  run_on_threads(thread_communicator<tensor>::connect(static_cast<int>(cut.size())), [&](thread_communicator<tensor>& comm) {
    const auto r = static_cast<std::size_t>(comm.rank());
    auto stage = gpt::make_cached_stage<float>(m, cut[r], r + 1 < cut.size() ? cut[r + 1] : gpt::layer_count(m));
    r == 0 ? lead_inference<tensor>(comm, stage, queue) : follow_inference<tensor>(comm, stage);
  });
  for (const auto& t : tickets) CHECK(t.wait() == inference_result{});
  return found;
}

}  // namespace

TEST_CASE_TEMPLATE("gpt inference: with caches, in pieces of any length, the logits are those of the whole forward", Real, float,
                   double) {
  random_source random(21);
  for (const auto& m : models()) {
    auto model = whole<Real>(m);
    auto context = model.make_context();
    const auto tokens = random_tokens<Real>(random, m.sequence, m.vocab);
    const gpt::tensor<Real> expected = model.forward(tokens, context);
    auto cached = gpt::make_cached_stage<Real>(m, 0, gpt::layer_count(m));
    for (const int longest : {1, 3, m.sequence}) {
      CAPTURE(longest);
      auto state = cached.make_state();
      for (std::size_t done = 0; done < tokens.rows();) {
        const auto count = std::min(tokens.rows() - done, static_cast<std::size_t>(random.integer(1, longest)));
        gpt::tensor<Real> piece(count, 1);
        std::copy_n(tokens.data() + done, count, piece.data());
        done += count;
        CAPTURE(done);
        const gpt::tensor<Real> logits = cached.infer(piece, state);
        REQUIRE(logits.rows() == 1);
        const auto row = gpt::map(expected).row(static_cast<Eigen::Index>(done - 1));
        const double off = static_cast<double>((gpt::map(logits).row(0) - row).cwiseAbs().maxCoeff());
        CHECK(off < (sizeof(Real) == 4 ? 1e-5 : 1e-13));
        Eigen::Index a = 0, b = 0;
        gpt::map(logits).row(0).maxCoeff(&a);
        row.maxCoeff(&b);
        CHECK(a == b);
      }
      CHECK_THROWS_AS((void)cached.infer(gpt::tensor<Real>(1, 1), state), input_error);
    }
    auto state = cached.make_state();
    CHECK_THROWS_AS((void)cached.infer(gpt::tensor<Real>(0, 1), state), input_error);
  }
}

TEST_CASE("gpt inference: one to four ranks make the same texts, those of the forward without caches, longer than a sequence") {
  const std::vector<std::string> prompts{"Alice", "a prompt that is longer than the sequence", "x"};
  for (const auto& m : models())
    for (const double temperature : {0.0, 1.5}) {
      CAPTURE(temperature);
      const gpt::generate_options options{.bytes = 40, .temperature = temperature, .seed = 5};
      std::vector<std::string> expected;
      for (const auto& p : prompts) {
        auto model = whole<float>(m);
        expected.push_back(gpt::generate<float>(m, model, p, options));
      }
      for (const auto& cut : {std::vector{0}, {0, 1}, {0, 4}, {0, 2, 3}, {0, 1, 2, 4}}) {
        CAPTURE(cut.size());
        CHECK(texts(m, cut, prompts, options) == expected);
      }
    }
}

TEST_CASE("gpt inference: what cannot be asked for is refused") {
  const auto m = models().front();
  const auto none = [](char) {};
  CHECK_THROWS_AS((void)gpt::text_request<float>(m, "", {}, none), input_error);
  CHECK_THROWS_AS((void)gpt::text_request<float>(m, "a", {.bytes = 0}, none), input_error);
}
