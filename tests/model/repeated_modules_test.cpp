// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <hetsched/core/random.hpp>
#include <hetsched/model/repeated_modules.hpp>

#include "../sanitizer_share.hpp"

using namespace hetsched;

namespace {

using tokens = std::vector<int>;

// The definition, word by word: all sub-sequences of what is no module yet, counted one after the other.
struct naive_modules {
  operator_sequence given;
  int least;
  std::vector<char> taken = std::vector<char>(given.tokens.size());

  bool holds(int first, int last) const {
    const auto from = given.intensive.begin();
    return std::none_of(taken.begin() + first, taken.begin() + last, [](char t) { return t; }) &&
           std::count(from + first, from + last, 1) >= least;
  }
  tokens part(int first, int last) const { return {given.tokens.begin() + first, given.tokens.begin() + last}; }

  std::vector<int> occurrences(const tokens& what) const {
    std::vector<int> starts;
    const int length = static_cast<int>(what.size());
    for (int i = 0; i + length <= given.size();) {
      const bool here = holds(i, i + length) && part(i, i + length) == what;
      if (here) starts.push_back(i);
      i += here ? length : 1;
    }
    return starts;
  }

  std::vector<repeated_module> run() {
    std::vector<repeated_module> found;
    const int n = given.size();
    for (;;) {
      std::map<tokens, std::vector<int>> all;
      for (int i = 0; i < n; ++i)
        for (int j = i + 1; j <= n && std::none_of(taken.begin() + i, taken.begin() + j, [](char t) { return t; }); ++j)
          if (holds(i, j)) all.try_emplace(part(i, j), std::vector<int>{});
      std::size_t most = 0;
      for (auto& [what, starts] : all) starts = occurrences(what), most = std::max(most, starts.size());
      if (most < 2) return found;
      // the leftmost shortest one: both ends intensive, no more than needed
      tokens window;
      for (int i = 0; i < n && window.empty(); ++i)
        for (int j = i + 1; j <= n; ++j) {
          const auto at = [&](int k) { return given.intensive[static_cast<std::size_t>(k)]; };
          if (at(i) && at(j - 1) && holds(i, j) && !holds(i + 1, j) && !holds(i, j - 1) && all.at(part(i, j)).size() == most) {
            window = part(i, j);
            break;
          }
        }
      repeated_module best;
      bytes_t best_bytes = 0;
      for (const auto& [what, starts] : all) {
        if (starts.size() < most || std::search(what.begin(), what.end(), window.begin(), window.end()) == what.end()) continue;
        const int length = static_cast<int>(what.size());
        bytes_t bytes = 0;
        for (const int s : starts)
          bytes += given.cut_bytes[static_cast<std::size_t>(s)] + given.cut_bytes[static_cast<std::size_t>(s + length)];
        if (std::tuple(-length, bytes, -starts.front()) <
            std::tuple(-best.length, best_bytes, best.starts.empty() ? 0 : -best.starts.front()))
          best = {length, starts}, best_bytes = bytes;
      }
      for (const int s : best.starts) std::fill_n(taken.begin() + s, best.length, char{1});
      found.push_back(best);
    }
  }
};

operator_sequence random_sequence(random_source& random) {
  operator_sequence s;
  const int alphabet = random.integer(1, 4), blocks = random.integer(1, 4);
  // random tokens, or random blocks repeated
  while (s.size() < 9) {
    tokens block(static_cast<std::size_t>(random.integer(1, 5)));
    for (auto& t : block) t = random.integer(0, alphabet);
    for (int i = random.integer(1, blocks); i > 0; --i) s.tokens.insert(s.tokens.end(), block.begin(), block.end());
  }
  s.tokens.resize(static_cast<std::size_t>(std::min(s.size(), 22)));
  const int intensive = random.integer(0, alphabet);
  for (const int t : s.tokens) s.intensive.push_back(t <= intensive);
  for (int i = 0; i <= s.size(); ++i) s.cut_bytes.push_back(random.integer(0, 2));
  return s;
}

std::string text(const operator_sequence& s) {
  std::string line;
  for (int i = 0; i < s.size(); ++i)
    line += std::to_string(s.tokens[static_cast<std::size_t>(i)]) + (s.intensive[static_cast<std::size_t>(i)] ? "* " : " ");
  return line;
}

}  // namespace

TEST_CASE("repeated modules are those that counting all sub-sequences finds") {
  random_source random(11);
  int modules = 0;
  for (int instance = 0; instance < 1500 / test::sanitizer_share; ++instance) {
    const auto sequence = random_sequence(random);
    const int least = random.integer(1, 4);
    CAPTURE(text(sequence));
    CAPTURE(least);
    const auto found = find_repeated_modules(sequence, least);
    modules += static_cast<int>(found.size());
    REQUIRE(found == naive_modules{sequence, least}.run());
  }
  CHECK(modules > 800 / test::sanitizer_share);
  CHECK_THROWS_AS((void)find_repeated_modules(random_sequence(random), 0), input_error);
}

TEST_CASE("planted blocks are found among noise") {
  random_source random(12);
  for (int instance = 0; instance < 20; ++instance) {
    operator_sequence s;
    int fresh = 1000;
    std::vector<int> starts;
    for (int copy = 0; copy < 30; ++copy) {
      for (int i = random.integer(1, 20); i > 0; --i) s.tokens.push_back(fresh++);
      starts.push_back(s.size());
      for (int t = 0; t < 40; ++t) s.tokens.push_back(t);
    }
    s.tokens.push_back(fresh);
    for (const int t : s.tokens) s.intensive.push_back(t % 3 == 0);
    s.cut_bytes.assign(s.tokens.size() + 1, 1);
    CHECK(find_repeated_modules(s, random.integer(1, 13)) == std::vector{repeated_module{40, starts}});
  }
}
