// SPDX-License-Identifier: Apache-2.0
#include <gpt/batch.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include <hetsched/core/error.hpp>
#include <hetsched/core/random.hpp>

using namespace hetsched;

TEST_CASE("every text comes back from its tokens") {
  std::string all;
  for (int b = 0; b < 256; ++b) all += static_cast<char>(b);
  const auto tokens = gpt::encode<float>(all);
  CHECK(tokens.shape() == std::array<std::size_t, 2>{256, 1});
  for (std::size_t b = 0; b < 256; ++b) CHECK(tokens(b, 0) == static_cast<float>(b));
  CHECK(gpt::decode(tokens) == all);
  CHECK(gpt::decode(gpt::encode<double>("na\xc3\xafve")) == "na\xc3\xafve");
  CHECK(gpt::decode(gpt::encode<double>("")).empty());
  gpt::tensor<double> bad(1, 1);
  for (const double token : {256.0, -1.0, 1.5}) {
    bad(0, 0) = token;
    CHECK_THROWS_AS((void)gpt::decode(bad), input_error);
  }
}

TEST_CASE("samples lie in the text, targets one byte further, and depend on seed, step and number only") {
  random_source random(1);
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(random.integer(0, 255));
  for (int i = 0; i < 50; ++i) {
    const int sequence = i == 0 ? 299 : random.integer(1, 20);
    const gpt::sample_range which{
        .seed = random(), .step = random.integer(0, 1000), .first_sample = random.integer(0, 9), .samples = 6};
    CAPTURE(sequence);
    const auto whole = gpt::draw<float>(text, sequence, which);
    CHECK(whole.inputs.rows() == static_cast<std::size_t>(6 * sequence));
    const auto n = static_cast<std::size_t>(sequence);
    const std::string inputs = gpt::decode(whole.inputs), targets = gpt::decode(whole.targets);
    for (std::size_t s = 0; s < 6; ++s) {
      CHECK(text.find(inputs.substr(s * n, n) + targets[s * n + n - 1]) != std::string::npos);
      CHECK(inputs.substr(s * n + 1, n - 1) == targets.substr(s * n, n - 1));
    }
    // The same samples in smaller microbatches.
    std::string pieces;
    for (const auto& [first, samples] : {std::pair{0, 1}, {1, 3}, {4, 2}})
      pieces += gpt::decode(
          gpt::draw<float>(
              text, sequence,
              {.seed = which.seed, .step = which.step, .first_sample = which.first_sample + first, .samples = samples})
              .inputs);
    CHECK(pieces == inputs);
  }
}

TEST_CASE("samples begin everywhere, also at both ends, and change with seed, step and number") {
  std::string text;
  for (int i = 0; i < 20; ++i) text += static_cast<char>('a' + i);
  std::set<std::string> found;
  for (int step = 0; step < 40; ++step)
    for (int number = 0; number < 10; ++number)
      found.insert(gpt::decode(gpt::draw<float>(text, 4, {.seed = 3, .step = step, .first_sample = number}).inputs));
  CHECK(found.size() == 16);
  CHECK(*found.begin() == "abcd");
  CHECK(*found.rbegin() == "pqrs");
  const auto of = [&](std::uint64_t seed, int step, int first) {
    return gpt::decode(gpt::draw<float>(text, 1, {.seed = seed, .step = step, .first_sample = first, .samples = 30}).inputs);
  };
  CHECK(of(1, 2, 3) == of(1, 2, 3));
  const std::set<std::string> different{of(1, 2, 3), of(2, 2, 3), of(1, 3, 3), of(1, 2, 33),
                                        of(2, 1, 3), of(1, 0, 3), of(0, 1, 3)};
  CHECK(different.size() == 7);
  CHECK_THROWS_WITH_AS((void)gpt::draw<float>("abcd", 4, {}),
                       "a text of 4 bytes is too short for samples of 4 bytes and the one after", input_error);
  CHECK(gpt::decode(gpt::draw<float>("abcd", 3, {.seed = 9}).targets) == "bcd");
}

TEST_CASE("the text of the example is plain and long enough") {
  std::ifstream file(std::string(HETSCHED_SOURCE_DIR) + "/examples/gpt/alice.txt", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  CHECK(text.size() > 40'000);
  CHECK(std::all_of(text.begin(), text.end(), [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); }));
}
