// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <hetsched/core/random.hpp>
#include <hetsched/io/checkpoint/checkpoint.hpp>
#include <hetsched/io/checkpoint/checkpoint_lock.hpp>
#include <hetsched/io/checkpoint/checkpoint_writer.hpp>

#include "../../sanitizer_share.hpp"

namespace fs = std::filesystem;
using namespace hetsched;

namespace {

struct empty_folder {
  explicit empty_folder(const std::string& name)
      : path((fs::temp_directory_path() / ("hetsched_" + name + std::to_string(::getpid()))).string()) {
    fs::remove_all(path);
    fs::create_directory(path);
  }
  empty_folder(const empty_folder&) = delete;
  empty_folder& operator=(const empty_folder&) = delete;
  ~empty_folder() { fs::remove_all(path); }
  std::string path;
};

struct whole_tensor {
  int layer;
  std::string name, element;
  std::vector<std::size_t> shape;
  std::vector<std::byte> bytes;
  friend bool operator==(const whole_tensor&, const whole_tensor&) = default;
};

std::vector<std::byte> random_bytes(random_source& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (auto& b : bytes) b = static_cast<std::byte>(random() & 0xff);
  return bytes;
}

std::vector<whole_tensor> random_tensors(random_source& random, int layers = 4) {
  std::vector<whole_tensor> all;
  for (int l = 0; l < layers; ++l)
    for (int p = 0, n = random.integer(0, 3); p < n; ++p) {
      whole_tensor t{l, "parameter." + std::to_string(p), random.integer(0, 1) ? "f32" : "f64", {}, {}};
      std::size_t count = t.element == "f32" ? 4 : 8;
      for (int d = 0, dims = random.integer(0, 3); d < dims; ++d) {
        t.shape.push_back(static_cast<std::size_t>(random.integer(d == 0 && random.integer(0, 9) == 0 ? 0 : 1, 7)));
        count *= t.shape.back();
      }
      t.bytes = random_bytes(random, count);
      all.push_back(std::move(t));
    }
  return all;
}

/// The tensors cut at random places, as views of their bytes.
std::vector<state_slice> cut(random_source& random, std::vector<whole_tensor>& all) {
  std::vector<state_slice> slices;
  for (auto& t : all) {
    const std::size_t size = t.element == "f32" ? 4 : 8, count = t.bytes.size() / size;
    std::size_t whole = 1;
    for (const auto extent : t.shape) whole *= extent;
    if (count > 0 && count == whole && t.shape.size() > 1 &&
        random.integer(0, 2) == 0) {  // columns of a dimension, of random rows
      const auto d = static_cast<std::size_t>(random.integer(1, static_cast<int>(t.shape.size()) - 1));
      std::size_t apart = 1;
      for (std::size_t k = d; k < t.shape.size(); ++k) apart *= t.shape[k];
      const std::size_t inner = apart / t.shape[d];
      for (std::size_t first = 0, last = 0; first < apart; first = last) {
        last =
            inner * static_cast<std::size_t>(random.integer(static_cast<int>(first / inner) + 1, static_cast<int>(t.shape[d])));
        for (std::size_t row = 0, end = 0; row < count / apart; row = end) {
          end = static_cast<std::size_t>(random.integer(static_cast<int>(row) + 1, static_cast<int>(count / apart)));
          const std::size_t begin = row * apart + first;
          slices.push_back({t.layer, t.name, t.element, t.shape, begin,
                            std::span(t.bytes).subspan(begin * size, ((end - row - 1) * apart + last - first) * size), end - row,
                            end - row > 1 ? apart : 0, end - row > 1 ? apart : 0});
        }
      }
      continue;
    }
    for (std::size_t first = 0; first < count || first == 0;) {
      const auto most = static_cast<int>(count - first);
      const auto taken = static_cast<std::size_t>(random.integer(0, 2) ? most : random.integer(std::min(1, most), most));
      slices.push_back({t.layer, t.name, t.element, t.shape, first, std::span(t.bytes).subspan(first * size, taken * size)});
      first += std::max<std::size_t>(taken, 1);
    }
  }
  return slices;
}

/// Deals slices out to ranks.
std::vector<std::vector<state_slice>> deal(random_source& random, const std::vector<state_slice>& slices, int ranks) {
  std::vector<std::vector<state_slice>> parts(static_cast<std::size_t>(ranks));
  for (const auto& s : slices) parts[static_cast<std::size_t>(random.integer(0, ranks - 1))].push_back(s);
  return parts;
}

void save(const std::string& folder, std::int64_t step, const std::vector<std::vector<state_slice>>& parts,
          const std::map<std::string, std::string>& info = {}) {
  for (std::size_t p = 0; p < parts.size(); ++p) write_checkpoint_part(folder, step, static_cast<int>(p), parts[p]);
  commit_checkpoint(folder, step, static_cast<int>(parts.size()), info);
}

std::vector<whole_tensor> loaded(random_source& random, const checkpoint& from, std::vector<whole_tensor> like,
                                 bool strict = true) {
  for (auto& t : like) std::fill(t.bytes.begin(), t.bytes.end(), std::byte{0x5a});
  auto wanted = cut(random, like);
  load_checkpoint(from, wanted, {.strict = strict});
  return like;
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& e : fs::directory_iterator(folder)) names.insert(e.path().filename().string());
  return names;
}

template <class Body>
std::string complaint_of(Body body) {
  try {
    body();
  } catch (const error& e) {
    return e.what();
  }
  return {};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a checkpoint loads under any other cut than the one it was written in") {
  random_source random(1);
  for (int round = 0; round < 120 / test::sanitizer_share; ++round) {
    CAPTURE(round);
    const empty_folder here("round_trip");
    auto all = random_tensors(random);
    const std::map<std::string, std::string> info{{"seed", "7"}, {"note \"/\"", "a\nb"}};
    save(here.path, round, deal(random, cut(random, all), random.integer(1, 5)), info);
    CHECK(names_in(here.path).size() == 1);

    const auto found = find_checkpoint(here.path);
    CHECK(found.damaged.empty());
    REQUIRE(found.newest);
    CHECK(found.newest->step == round);
    CHECK(found.newest->info == info);
    CHECK(loaded(random, *found.newest, all) == all);
    // One of them alone.
    if (!all.empty()) {
      std::vector one{all[static_cast<std::size_t>(random.integer(0, static_cast<int>(all.size()) - 1))]};
      CHECK(loaded(random, *found.newest, one, false) == one);
    }
  }
}

TEST_CASE("a changed bit anywhere in a checkpoint is found") {
  random_source random(2);
  const empty_folder here("bit_flips");
  auto all = random_tensors(random);
  save(here.path, 3, deal(random, cut(random, all), 3), {{"seed", "1234567"}});
  std::vector<fs::path> files;
  for (const auto& e : fs::directory_iterator(here.path + "/step-000003"))
    if (e.file_size() > 0) files.push_back(e.path());
  REQUIRE(files.size() >= 3);
  const auto flip = [](const fs::path& file, std::uintmax_t bit) {
    std::fstream f(file, std::ios::binary | std::ios::in | std::ios::out);
    f.seekg(static_cast<std::streamoff>(bit / 8));
    const char c = static_cast<char>(f.get() ^ (1 << (bit % 8)));
    f.seekp(static_cast<std::streamoff>(bit / 8));
    f.put(c);
  };
  const auto check = [&](const fs::path& file, std::uintmax_t bit) {
    CAPTURE(file);
    CAPTURE(bit);
    flip(file, bit);
    const auto found = find_checkpoint(here.path);
    CHECK(!found.newest);
    REQUIRE(found.damaged.size() == 1);
    CHECK(contains(found.damaged[0], file.filename().string()));
    // What is loaded without a look at everything is right or refused, too.
    CHECK(complaint_of([&] { CHECK(loaded(random, open_checkpoint(here.path + "/step-000003"), all) == all); }) != "");
    flip(file, bit);
  };
  for (const auto& file : files) {
    const auto bits = 8 * fs::file_size(file);
    if (file.filename() != "manifest.json")
      for (int k = 0; k < 20 / test::sanitizer_share; ++k) check(file, random() % bits);
  }
  const auto manifest = here.path + "/step-000003/manifest.json";
  const auto bits = 8 * fs::file_size(manifest);
  for (std::uintmax_t bit = random() % 7; bit < bits; bit += 7u * test::sanitizer_share) check(manifest, bit);
  CHECK(find_checkpoint(here.path).newest);
}

TEST_CASE("the newest whole checkpoint is found, with what is wrong with newer ones") {
  random_source random(3);
  auto all = random_tensors(random);
  struct row {
    const char* what;
    void (*damage)(const std::string&);
    const char* part;
  };
  const row rows[] = {
      {"truncated part", [](const std::string& p) { fs::resize_file(p + "/part-0.bin", fs::file_size(p + "/part-0.bin") - 1); },
       "bytes, expected"},
      {"longer part", [](const std::string& p) { std::ofstream(p + "/part-1.bin", std::ios::app) << 'x'; }, "bytes, expected"},
      {"missing part", [](const std::string& p) { fs::remove(p + "/part-1.bin"); }, "part-1.bin: cannot be opened"},
      {"empty manifest", [](const std::string& p) { std::ofstream(p + "/manifest.json") << ""; }, "manifest.json"},
      {"no manifest", [](const std::string& p) { fs::remove(p + "/manifest.json"); }, "manifest.json: cannot be opened"},
      {"an edited manifest",
       [](const std::string& p) {
         auto text = read_text(p + "/manifest.json");
         text.replace(text.find("\"step\": 20"), 10, "\"step\": 30");
         std::ofstream(p + "/manifest.json") << text;
       },
       "/checksum"},
      {"another version",
       [](const std::string& p) {
         auto text = read_text(p + "/manifest.json");
         text.replace(text.find("\"version\": "), 12, "\"version\": 4");
         std::ofstream(p + "/manifest.json") << text;
       },
       "/version"},
      {"a pipe for a manifest",
       [](const std::string& p) {
         fs::remove(p + "/manifest.json");
         REQUIRE(::mkfifo((p + "/manifest.json").c_str(), 0600) == 0);
       },
       "manifest.json: is no regular file"},
      {"under another step's name",
       [](const std::string& p) {
         fs::remove_all(p);
         fs::copy(p.substr(0, p.size() - 2) + "10", p);
       },
       "/step"},
  };
  for (const auto& r : rows) {
    CAPTURE(r.what);
    const empty_folder here("fall_back");
    save(here.path, 10, deal(random, cut(random, all), 2));
    auto newer = all;
    for (auto& t : newer) std::fill(t.bytes.begin(), t.bytes.end(), std::byte{1});
    auto slices = cut(random, newer);
    save(here.path, 20, {{slices.begin(), slices.begin() + 2}, {slices.begin() + 2, slices.end()}});
    CHECK(find_checkpoint(here.path).newest->step == 20);
    r.damage(here.path + "/step-000020");
    const auto found = find_checkpoint(here.path);
    REQUIRE(found.newest);
    CHECK(found.newest->step == 10);
    REQUIRE(found.damaged.size() == 1);
    CAPTURE(found.damaged[0]);
    CHECK(contains(found.damaged[0], "step-000020"));
    CHECK(contains(found.damaged[0], r.part));
    CHECK(loaded(random, *found.newest, all) == all);
    // The same step can be written again.
    save(here.path, 20, {cut(random, newer)});
    CHECK(find_checkpoint(here.path).newest->step == 20);
    CHECK(loaded(random, *find_checkpoint(here.path).newest, newer) == newer);
    CHECK(names_in(here.path) == std::set<std::string>{"step-000010", "step-000020"});
  }
  CHECK(!find_checkpoint("/nowhere/at/all").newest);
  CHECK(find_checkpoint("/nowhere/at/all").damaged.empty());
}

TEST_CASE("parts that do not hold every tensor exactly once are not committed") {
  random_source random(4);
  const empty_folder here("coverage");
  std::vector<whole_tensor> all{{0, "parameter.0", "f32", {6, 2}, random_bytes(random, 48)},
                                {2, "parameter.0", "f64", {5}, random_bytes(random, 40)}};
  const auto slice = [&](std::size_t t, std::size_t first, std::size_t count) {
    const std::size_t size = t == 0 ? 4 : 8;
    return state_slice{all[t].layer, all[t].name, all[t].element,
                       all[t].shape, first,       std::span(all[t].bytes).subspan(first * size, count * size)};
  };
  auto other_shape = slice(0, 6, 6);
  other_shape.shape = {2, 6};
  auto other_element = slice(1, 2, 3);
  other_element.element = "i64";
  using parts = std::vector<std::vector<state_slice>>;
  struct row {
    parts written;
    const char* part;
  };
  const row rows[] = {
      {{{slice(0, 0, 12)}, {slice(1, 0, 4)}}, "layer 2, parameter.0: elements 4 to 4 are in no part"},
      {{{slice(0, 0, 5), slice(1, 0, 5)}, {slice(0, 7, 5)}}, "layer 0, parameter.0: elements 5 to 6 are in no part"},
      {{{slice(0, 2, 10), slice(1, 0, 5)}}, "elements 0 to 1 are in no part"},
      {{{slice(0, 0, 12), slice(1, 0, 5)}, {slice(0, 0, 12)}}, "elements 0 to 11 are there twice, again in part 1"},
      {{{slice(0, 0, 7), slice(1, 0, 5)}, {slice(0, 6, 6)}}, "elements 6 to 6 are there twice"},
      {{{slice(0, 0, 6), slice(1, 0, 5)}, {other_shape}}, "is f32[6 x 2] in part 0, but f32[2 x 6] in part 1"},
      {{{slice(0, 0, 12)}, {slice(1, 0, 2), other_element}}, "f64[5] in part 1, but i64[5]"},
  };
  for (const auto& r : rows) {
    CAPTURE(r.part);
    const auto text = complaint_of([&] { save(here.path, 1, r.written); });
    CAPTURE(text);
    CHECK(contains(text, r.part));
    CHECK(!find_checkpoint(here.path).newest);
  }
  // A part that nobody has written, or of another step.
  fs::remove_all(here.path + "/step-000001.writing");
  write_checkpoint_part(here.path, 1, 0, std::vector{slice(0, 0, 12)});
  CHECK(contains(complaint_of([&] { commit_checkpoint(here.path, 1, 2); }), "part-1.json: cannot be opened"));
  write_checkpoint_part(here.path, 2, 1, std::vector{slice(1, 0, 5)});
  fs::copy(here.path + "/step-000002.writing/part-1.json", here.path + "/step-000001.writing/part-1.json");
  CHECK(contains(complaint_of([&] { commit_checkpoint(here.path, 1, 2); }), "/step: found 2, expected 1"));
  // Slices that cannot be.
  auto outside = slice(0, 6, 6);
  outside.first = 7;
  CHECK(contains(complaint_of([&] { write_checkpoint_part(here.path, 1, 0, std::vector{outside}); }),
                 "24 bytes from element 7 do not lie in f32[6 x 2]"));
  auto odd = slice(0, 0, 1);
  odd.bytes = odd.bytes.first(3);
  CHECK(contains(complaint_of([&] { write_checkpoint_part(here.path, 1, 0, std::vector{odd}); }), "3 bytes"));
  odd.element = "float";
  CHECK(contains(complaint_of([&] { write_checkpoint_part(here.path, 1, 0, std::vector{odd}); }), "there is no element float"));
  CHECK(contains(complaint_of([&] { write_checkpoint_part("/proc/none", 1, 0, std::vector{slice(0, 0, 12)}); }), "/proc/none"));
}

TEST_CASE("rows: packed or not, and what is missing or twice of them") {
  random_source random(9);
  const empty_folder here("rows");
  whole_tensor t{0, "parameter.0", "f32", {4, 6}, random_bytes(random, 96)};
  const auto columns = [&](std::size_t first, std::size_t last) {
    return state_slice{0, t.name, t.element, t.shape, first, std::span(t.bytes).subspan(4 * first, 4 * (18 + last - first)),
                       4, 6,      6};
  };
  save(here.path, 1, {{columns(0, 2)}, {columns(2, 6)}});
  const auto from = *find_checkpoint(here.path).newest;
  std::vector<std::byte> packed(4 * 4 * 3);
  std::vector<state_slice> wanted{{0, t.name, t.element, t.shape, 1, packed, 4, 6, 0}};
  load_checkpoint(from, wanted);
  for (std::size_t row = 0; row < 4; ++row)
    CHECK(std::equal(packed.begin() + static_cast<std::ptrdiff_t>(12 * row),
                     packed.begin() + static_cast<std::ptrdiff_t>(12 * row + 12),
                     t.bytes.begin() + static_cast<std::ptrdiff_t>(24 * row + 4)));
  CHECK(contains(complaint_of([&] {
                   save(here.path, 2, {{columns(0, 2)}, {columns(3, 6)}});
                 }),
                 "elements 2 to 2 are in no part"));
  CHECK(contains(complaint_of([&] {
                   save(here.path, 2, {{columns(0, 3)}, {columns(2, 6)}});
                 }),
                 "elements 2 to 2 are there twice"));
  auto short_one = columns(2, 6);
  short_one.rows = 3;
  short_one.bytes = short_one.bytes.first(4 * 16);
  CHECK(contains(complaint_of([&] { save(here.path, 2, {{columns(0, 2)}, {short_one}}); }), "elements 20 to 23 are in no part"));
  // A whole run beside rows, and rows of two distances.
  auto top = columns(0, 2);
  top.rows = 1;
  top.apart = top.held_apart = 0;
  top.bytes = std::span(t.bytes).first(24);
  auto rest = columns(0, 2), other = columns(2, 6);
  for (auto* s : {&rest, &other}) {
    s->first += 6;
    s->rows = 3;
    s->bytes = std::span(t.bytes).subspan(4 * s->first, 4 * (s == &rest ? 14 : 16));
  }
  save(here.path, 3, {{top}, {rest, other}});
  state_slice two{0, t.name, t.element, t.shape, 0, std::span(t.bytes).first(4 * 15), 2, 12, 12};
  state_slice gap{0, t.name, t.element, t.shape, 3, std::span(t.bytes).subspan(12, 4 * 15), 2, 12, 12};
  state_slice odd{0, t.name, t.element, t.shape, 6, std::span(t.bytes).subspan(24, 4 * 18), 2, 12, 12};
  save(here.path, 4, {{two, gap}, {odd}});
  state_slice left = columns(0, 2), right = columns(2, 6);
  CHECK(contains(complaint_of([&] { save(here.path, 5, {{two, gap}, {left, right}}); }), "are there twice"));
  auto wrong = columns(0, 2);
  wrong.apart = 8;
  CHECK(contains(complaint_of([&] { write_checkpoint_part(here.path, 5, 0, std::vector{wrong}); }),
                 "in 4 rows do not lie in f32[4 x 6]"));
}

TEST_CASE("slices of a wrong tensor, shape or element are refused") {
  random_source random(5);
  const empty_folder here("mismatch");
  std::vector<whole_tensor> all{{1, "parameter.0", "f32", {3, 2}, random_bytes(random, 24)}};
  save(here.path, 5, {cut(random, all)});
  const auto from = *find_checkpoint(here.path).newest;
  const auto refused = [&](auto change) {
    auto wanted = all;
    change(wanted[0]);
    return complaint_of([&] { (void)loaded(random, from, wanted); });
  };
  CHECK(contains(refused([](auto& t) { t.layer = 2; }),
                 "1 tensor missing (layer 2, parameter.0); 1 tensor left over (layer 1, parameter.0)"));
  CHECK(contains(refused([](auto& t) { t.name = "adamw.first_moment.0"; }),
                 "1 tensor missing (layer 1, adamw.first_moment.0); 1 tensor left over (layer 1, parameter.0)"));
  CHECK(contains(refused([](auto& t) { t.shape = {2, 3}; }), "found f32[3 x 2], expected f32[2 x 3]"));
  CHECK(contains(refused([](auto& t) {
                   t.element = "f64";
                   t.bytes.resize(48);
                 }),
                 "found f32[3 x 2], expected f64[3 x 2]"));
  all[0].bytes.resize(28);
  std::vector<state_slice> large{{1, "parameter.0", "f32", {3, 2}, 0, all[0].bytes}};
  CHECK(contains(complaint_of([&] { load_checkpoint(from, large); }), "28 bytes from element 0 do not lie in f32[3 x 2]"));
}

TEST_CASE("what only one side has is listed, and passed over only where that is asked for") {
  random_source random(11);
  const empty_folder here("strict");
  std::vector<whole_tensor> all;
  for (int layer = 0; layer < 12; ++layer) all.push_back({layer, "parameter.0", "f32", {2}, random_bytes(random, 8)});
  save(here.path, 1, {cut(random, all)});
  const auto from = *find_checkpoint(here.path).newest;

  auto eleven = all;
  eleven.pop_back();
  for (auto& t : eleven) t.bytes.assign(8, std::byte{7});
  const auto untouched = eleven;
  auto wanted = cut(random, eleven);
  CHECK(contains(complaint_of([&] { load_checkpoint(from, wanted); }), "1 tensor left over (layer 11, parameter.0)"));
  CHECK(eleven == untouched);
  // A slice without elements: somebody else has it.
  auto with_last = wanted;
  with_last.push_back({.layer = 11, .name = "parameter.0", .element = "f32", .shape = {2}, .bytes = {}});
  CHECK(load_checkpoint(from, with_last).left_over.empty());
  CHECK(std::equal(eleven.begin(), eleven.end(), all.begin()));

  // Two that it lacks, one of them in two slices.
  std::vector<std::byte> more(8, std::byte{7});
  for (const std::size_t first : {0, 1})
    wanted.push_back({12, "parameter.0", "f32", {2}, first, std::span(more).subspan(4 * first, 4)});
  wanted.push_back({12, "parameter.1", "f32", {2}, 0, more});
  CHECK(contains(complaint_of([&] { load_checkpoint(from, wanted); }),
                 "2 tensors missing (layer 12, parameter.0; layer 12, parameter.1); 1 tensor left over (layer 11, parameter.0)"));
  eleven = untouched;
  wanted = cut(random, eleven);
  wanted.push_back({12, "parameter.0", "f32", {2}, 0, more});
  const auto unmatched = load_checkpoint(from, wanted, {.strict = false});
  CHECK(unmatched.missing == std::vector<std::string>{"layer 12, parameter.0"});
  CHECK(unmatched.left_over == std::vector<std::string>{"layer 11, parameter.0"});
  CHECK(std::equal(eleven.begin(), eleven.end(), all.begin()));
  CHECK(more == std::vector<std::byte>(8, std::byte{7}));
}

TEST_CASE("what layers call their tensors decides, whatever their numbers") {
  random_source random(15);
  const empty_folder here("names");
  const std::string kinds[] = {"parameter.", "adamw.first_moment.", "buffer."};
  // Tensors of one shape, whose order nothing else would tell.
  const auto make = [&](const std::vector<std::string>& own_names) {
    std::vector<whole_tensor> all;
    std::vector<std::string> own;
    for (const auto& kind : kinds)
      for (std::size_t n = 0; n < 3; ++n) {
        all.push_back({4, kind + std::to_string(n), "f32", {2}, random_bytes(random, 8)});
        own.push_back(own_names.empty() ? "" : own_names[n]);
      }
    return std::pair(all, own);
  };
  const auto slices_of = [](auto& made) {
    std::vector<state_slice> slices;
    for (std::size_t i = 0; i < made.first.size(); ++i) {
      auto& t = made.first[i];
      slices.push_back({t.layer, t.name, t.element, t.shape, 0, t.bytes});
      slices.back().own_name = made.second[i];
    }
    return slices;
  };
  auto written = make({"attn.weight", "attn.bias", "1"}), without = make({});
  save(here.path, 1, {slices_of(written)});
  save(here.path, 2, {slices_of(without)});
  const auto named = open_checkpoint(here.path + "/step-000001"), plain = open_checkpoint(here.path + "/step-000002");
  CHECK(std::all_of(plain.slices.begin(), plain.slices.end(), [](const auto& s) { return s.own_name.empty(); }));
  CHECK(contains(read_text(named.path + "/manifest.json"), "\"version\": 3"));
  CHECK(contains(read_text(named.path + "/manifest.json"), "\"own_name\": \"attn.weight\""));
  CHECK(contains(read_text(plain.path + "/manifest.json"), "\"version\": 1"));

  auto other_order = make({"1", "attn.weight", "attn.bias"});
  auto wanted = slices_of(other_order);
  load_checkpoint(named, wanted);
  for (std::size_t i = 0; i < 9; ++i) CHECK(other_order.first[i].bytes == written.first[i / 3 * 3 + (i % 3 + 2) % 3].bytes);
  // Under each of its names: "attn.bias" was the first of two when it was written, and is the last of three now.
  auto shared = make({"1", "attn.weight", "again"});
  wanted = slices_of(shared);
  for (std::size_t i = 2; i < 9; i += 3) wanted[i].other_names = {"another", "attn.bias"};
  load_checkpoint(named, wanted);
  for (std::size_t i = 0; i < 9; ++i) CHECK(shared.first[i].bytes == other_order.first[i].bytes);
  for (auto& w : wanted) w.other_names.resize(w.other_names.empty() ? 0 : 1);
  CHECK(contains(complaint_of([&] { load_checkpoint(named, wanted); }), "layer 4, parameter.2 (again)); 3 tensors left over"));
  // Two tensors of the checkpoint for one.
  wanted = slices_of(shared);
  std::erase_if(wanted, [](const auto& w) { return w.own_name == "again"; });
  for (auto& w : wanted)
    if (w.own_name == "attn.weight") w.other_names = {"attn.bias"};
  const auto two = complaint_of([&] { load_checkpoint(named, wanted); });
  CHECK(contains(two, ": 3 tensors left over (layer 4, adamw.first_moment.1 (attn.bias); "));
  // Where one side has no names, by number.
  auto numbered = make({});
  wanted = slices_of(numbered);
  load_checkpoint(named, wanted);
  CHECK(numbered.first == written.first);
  wanted = slices_of(other_order);
  load_checkpoint(plain, wanted);
  CHECK(other_order.first == without.first);

  auto renamed = make({"attn.kernel", "attn.bias", "1"});
  const auto untouched = renamed;
  wanted = slices_of(renamed);
  const auto text = complaint_of([&] { load_checkpoint(named, wanted); });
  CHECK(contains(text,
                 "3 tensors missing (layer 4, adamw.first_moment.0 (attn.kernel); layer 4, buffer.0 (attn.kernel); "
                 "layer 4, parameter.0 (attn.kernel)); 3 tensors left over"));
  CHECK(contains(text, "layer 4, parameter.0 (attn.weight))"));
  CHECK(renamed == untouched);
  CHECK(load_checkpoint(named, wanted, {.strict = false}).missing.size() == 3);
  CHECK(renamed.first[0] == untouched.first[0]);
  CHECK(renamed.first[1] == written.first[1]);

  auto twice = make({"attn.weight", "attn.weight", "1"});
  CHECK(contains(complaint_of([&] { save(here.path, 3, {slices_of(twice)}); }),
                 "layer 4, adamw.first_moment.1: its layer calls adamw.first_moment.0 \"attn.weight\", too"));
  std::vector<state_slice> halves{{0, "parameter.0", "f32", {2}, 0, std::span(twice.first[0].bytes).first(4)},
                                  {0, "parameter.0", "f32", {2}, 1, std::span(twice.first[0].bytes).subspan(4)}};
  halves[1].own_name = "weight";
  CHECK(contains(complaint_of([&] {
                   save(here.path, 3, {{halves[0]}, {halves[1]}});
                 }),
                 "layer 0, parameter.0: its layer calls it \"\" in part 0, but \"weight\" in part 1"));
}

TEST_CASE("old checkpoints are removed, and what stopped writers have left") {
  random_source random(6);
  const empty_folder here("prune");
  auto all = random_tensors(random);
  for (int step = 1; step <= 5; ++step) save(here.path, step, {cut(random, all)});
  write_checkpoint_part(here.path, 2, 0, cut(random, all));
  write_checkpoint_part(here.path, 9, 0, cut(random, all));
  fs::create_directory(here.path + "/step-000001.removing");
  std::ofstream(here.path + "/step-000001.removing/part-0.bin") << "x";
  std::ofstream(here.path + "/notes.txt") << "mine";
  fs::remove(here.path + "/step-000005/part-0.bin");  // does not count
  prune_checkpoints(here.path, 2);
  CHECK(names_in(here.path) ==
        std::set<std::string>{"notes.txt", "step-000003", "step-000004", "step-000005", "step-000009.writing"});
  CHECK(find_checkpoint(here.path).newest->step == 4);
  prune_checkpoints(here.path, 1);
  CHECK(names_in(here.path) == std::set<std::string>{"notes.txt", "step-000004", "step-000005", "step-000009.writing"});
  CHECK_THROWS_AS(prune_checkpoints(here.path, 0), input_error);
}

TEST_CASE("the reader in Python reads what has been written, and what a caller has added") {
  random_source random(33);
  const empty_folder here("python");
  auto all = random_tensors(random, 12);
  std::map<std::string, double> sums;  // by the begin of a line
  const auto number = [&](whole_tensor& t) {
    const std::size_t count = t.bytes.size() / (t.element == "f32" ? 4 : 8);
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const double value = random.uniform(-1, 1);
      const auto single = static_cast<float>(value);
      t.element == "f32" ? std::memcpy(t.bytes.data() + 4 * i, &single, 4) : std::memcpy(t.bytes.data() + 8 * i, &value, 8);
      sum += (t.element == "f32" ? static_cast<double>(single) : value) * static_cast<double>(i + 1);
    }
    sums[std::to_string(t.layer) + " " + t.name] = sum;
  };
  for (auto& t : all) number(t);
  auto parts = deal(random, cut(random, all), 3);
  std::int64_t position = 123456789;
  state_slice loader{.name = "loader", .element = "i64", .shape = {1}, .bytes = std::as_writable_bytes(std::span(&position, 1))};
  loader.own_name = "samples.place";
  parts[1].push_back(loader);
  sums["0 loader"] = 123456789;
  save(here.path, 7, parts);
  std::string text;
  const auto script = std::string(HETSCHED_SOURCE_DIR) + "/examples/read_checkpoint.py";
  FILE* const pipe = ::popen(("python3 " + script + ' ' + here.path + "/step-000007").c_str(), "r");
  REQUIRE(pipe);
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  CHECK(::pclose(pipe) == 0);
  CAPTURE(text);
  std::istringstream lines(text);
  std::size_t read = 0;
  for (std::string line; std::getline(lines, line); ++read) {
    CAPTURE(line);
    std::istringstream words(line);
    std::string layer, name;
    words >> layer >> name;
    REQUIRE(sums.count(layer + " " + name) == 1);
    CHECK((line.find(" samples.place ") != std::string::npos) == (name == "loader"));
    CHECK(std::stod(line.substr(line.rfind(' '))) == doctest::Approx(sums[layer + " " + name]).epsilon(1e-12));
  }
  CHECK(read == sums.size());
  position = 0;
  load_checkpoint(*find_checkpoint(here.path).newest, std::span(&loader, 1), {.strict = false});
  CHECK(position == 123456789);
}

TEST_CASE("[threads] checkpoints that are written while the state goes on hold what it was") {
  random_source random(31);
  const empty_folder here("behind");
  constexpr int ranks = 3;
  checkpoint_writer writers[] = {checkpoint_writer(here.path), checkpoint_writer(here.path), checkpoint_writer(here.path)};
  auto all = random_tensors(random, 12);
  std::size_t most = 0;
  for (const auto& t : all) most += t.bytes.size();
  for (std::int64_t step = 1; step <= 6; ++step) {
    CAPTURE(step);
    for (auto& t : all) t.bytes = random_bytes(random, t.bytes.size());
    const auto then = all;
    const auto parts = deal(random, cut(random, all), ranks);
    std::size_t bytes = 0;
    for (int r = 0; r < ranks; ++r) {
      writers[r].begin(step, r, parts[static_cast<std::size_t>(r)]);
      bytes += writers[r].bytes();
    }
    CHECK(bytes == most);  // of slices that are rows of a tensor, too
    for (auto& t : all) std::fill(t.bytes.begin(), t.bytes.end(), std::byte{0x77});
    for (auto& w : writers) w.wait();
    for (auto& w : writers) CHECK(w.is_done());
    writers[0].begin_commit(step, ranks, {{"step", std::to_string(step)}}, 2);
    writers[0].wait();
    const auto found = find_checkpoint(here.path);
    REQUIRE(found.newest);
    CHECK(found.newest->step == step);
    CHECK(found.newest->info.at("step") == std::to_string(step));
    CHECK(loaded(random, *found.newest, then) == then);
  }
  CHECK(names_in(here.path) == std::set<std::string>{"step-000005", "step-000006"});
}

TEST_CASE("[threads] what fails behind a training is told once, by whoever waits for it") {
  random_source random(32);
  const empty_folder here("behind_fault");
  auto all = random_tensors(random, 6);
  std::ofstream(here.path + "/step-000001.writing") << "no folder";
  checkpoint_writer writer(here.path);
  writer.begin(1, 0, cut(random, all));
  CHECK(contains(complaint_of([&] { writer.wait(); }), "step-000001.writing"));
  CHECK(writer.is_done());
  writer.begin(2, 0, cut(random, all));
  writer.begin_commit(2, 2);  // of one part too many
  CHECK(contains(complaint_of([&] { writer.begin(3, 0, cut(random, all)); }), "part-1"));
  writer.begin(3, 0, cut(random, all));
  writer.begin_commit(3, 1);
  writer.wait();
  CHECK(find_checkpoint(here.path).newest->step == 3);
  auto wrong = cut(random, all);
  wrong.front().element = "thing";
  CHECK(contains(complaint_of([&] { writer.begin(4, 0, wrong); }), "there is no element thing"));
}

TEST_CASE("the checkpoint just committed stays, whatever damage later ones have") {
  random_source random(7);
  const empty_folder here("prune_behind");
  auto all = random_tensors(random);
  for (const int step : {2, 4, 6, 8}) save(here.path, step, {cut(random, all)});
  for (const int step : {6, 8}) {
    std::fstream part(here.path + "/step-00000" + std::to_string(step) + "/part-0.bin",
                      std::ios::in | std::ios::out | std::ios::binary);
    const int byte = part.get();
    part.seekp(0);
    part.put(static_cast<char>(byte ^ 1));
  }
  REQUIRE(find_checkpoint(here.path).newest->step == 4);
  save(here.path, 5, {cut(random, all)});
  prune_checkpoints(here.path, 1, 5);
  CHECK(names_in(here.path) == std::set<std::string>{"step-000005", "step-000006", "step-000008"});
  REQUIRE(find_checkpoint(here.path).newest);
  CHECK(find_checkpoint(here.path).newest->step == 5);
}

namespace {

struct stopped {};

/// The disk under a writer that is stopped after some operations, with all that was not synced lost: the contents of files,
/// the names of new files, and renamings, which are undone.
class stopping_files {
 public:
  stopping_files(int operations, bool keep_renames) : left_(operations), keep_renames_(keep_renames) {}

  void make_folder(const std::string& path) {
    count();
    disk_.make_folder(path);
  }
  void create(const std::string& path) {
    count();
    disk_.create(path);
    contents_.insert(path);
    names_.insert(path);
  }
  void append(const std::string& path, std::span<const std::byte> bytes) {
    count();
    disk_.append(path, bytes);
    contents_.insert(path);
  }
  void sync(const std::string& path) {
    count();
    disk_.sync(path);
    contents_.erase(path);
    std::erase_if(names_, [&](const auto& name) { return fs::path(name).parent_path() == path; });
    std::erase_if(renamed_, [&](const auto& r) { return fs::path(r.second).parent_path() == path; });
  }
  void rename(const std::string& from, const std::string& to) {
    count();
    disk_.rename(from, to);
    renamed_.push_back({from, to});
    for (auto* const paths : {&contents_, &names_}) {
      std::set<std::string> moved;
      for (const auto& p : *paths) moved.insert(p.starts_with(from + '/') ? to + p.substr(from.size()) : p);
      *paths = std::move(moved);
    }
  }
  void remove(const std::string& path) {
    count();
    disk_.remove(path);
    for (auto* const paths : {&contents_, &names_})
      std::erase_if(*paths, [&](const auto& p) { return p == path || p.starts_with(path + '/'); });
    std::erase_if(renamed_, [&](const auto& r) { return r.second == path; });
  }

  void stop() {
    for (const auto& p : contents_)
      if (fs::exists(p)) fs::resize_file(p, fs::file_size(p) / 2);
    for (const auto& p : names_) fs::remove(p);
    if (!keep_renames_)
      for (; !renamed_.empty(); renamed_.pop_back()) fs::rename(renamed_.back().second, renamed_.back().first);
  }

 private:
  void count() {
    if (left_-- == 0) throw stopped();
  }
  int left_;
  bool keep_renames_;
  detail::checkpoint_files disk_;
  std::set<std::string> contents_, names_;
  std::vector<std::pair<std::string, std::string>> renamed_;
};

}  // namespace

TEST_CASE("a writer that is stopped at any moment leaves the checkpoint before it, or the new one, whole") {
  random_source random(7);
  auto old = random_tensors(random, 6);
  REQUIRE(old.size() >= 2);
  auto fresh = old;
  for (auto& t : fresh) t.bytes = random_bytes(random, t.bytes.size());
  const auto old_parts = deal(random, cut(random, old), 3);
  const auto parts = deal(random, cut(random, fresh), 2);
  int first = 0;  // Every third moment of each of four cases, all moments together: each waits for the disk many times.
  for (const std::int64_t step : {4, 8})  // the same step again, or a later one
    for (const bool keep_renames : {false, true})
      for (int k = first++ % 3;; k += 3) {
        CAPTURE(step);
        CAPTURE(keep_renames);
        CAPTURE(k);
        const empty_folder here("stopped");
        save(here.path, 4, old_parts);
        // What an attempt of three ranks has left.
        write_checkpoint_part(here.path, step, 2, old_parts[0]);
        stopping_files files(k, keep_renames);
        bool through = true;
        try {
          for (int p = 0; p < 2; ++p) detail::write_part(files, here.path, step, p, parts[static_cast<std::size_t>(p)]);
          detail::commit(files, here.path, step, 2, {});
        } catch (const stopped&) {
          through = false;
        }
        files.stop();
        const auto found = find_checkpoint(here.path);
        CHECK(found.damaged.empty());
        REQUIRE(found.newest);
        const auto now = loaded(random, *found.newest, old);
        if (through) {
          CHECK(found.newest->step == step);
          CHECK(now == fresh);
          CHECK(names_in(here.path).size() == (step == 4 ? 1 : 2));
          CHECK(names_in(found.newest->path) == std::set<std::string>{"manifest.json", "part-0.bin", "part-1.bin"});
          break;
        }
        CHECK((now == old || now == fresh));
        if (found.newest->step == 8) CHECK(now == fresh);
        // The next attempt is not in its way.
        save(here.path, step, parts);
        const auto again = find_checkpoint(here.path);
        CHECK(again.damaged.empty());
        REQUIRE(again.newest);
        CHECK(again.newest->step == step);
        CHECK(loaded(random, *again.newest, old) == fresh);
      }
}

TEST_CASE("a folder of checkpoints has one writer at a time, and tells who that is") {
  const empty_folder here("owner");
  {
    const checkpoint_lock first(here.path);
    std::string why;
    try {
      const checkpoint_lock second(here.path);
    } catch (const input_error& e) {
      why = e.what();
    }
    CHECK(why.find(here.path + ": another training writes its checkpoints there: process " + std::to_string(::getpid()) +
                   " on ") == 0);
    CHECK_THROWS_AS(checkpoint_lock("/nowhere/at/all"), input_error);
  }
  CHECK(names_in(here.path).empty());
  const checkpoint_lock again(here.path);
  CHECK(!find_checkpoint(here.path).newest);
}

TEST_CASE("a folder of checkpoints goes to the first rank that the same run has now, and to no other run") {
  const empty_folder here("owner-of-run");
  const auto why = [&](const std::string& run) {
    try {
      const checkpoint_lock other(here.path, run);
    } catch (const input_error& e) {
      return std::string(e.what());
    }
    return std::string("held");
  };
  const auto refusal =
      here.path + ": another training writes its checkpoints there: process " + std::to_string(::getpid()) + " on ";
  auto stopped = std::make_unique<checkpoint_lock>(here.path, "one");
  for (const char* run : {"", "two", "on", "one "}) {
    CAPTURE(run);
    CHECK(why(run).find(refusal) == 0);
    CHECK(why(run).find('\n') == std::string::npos);
  }
  {
    const checkpoint_lock now(here.path, "one");
    CHECK(why("two").find(refusal) == 0);
    // That the one before lets go, late, changes nothing.
    stopped.reset();
    CHECK(why("two").find(refusal) == 0);
  }
  CHECK(names_in(here.path).empty());
  // A training that names no run loses the folder to nobody.
  const checkpoint_lock nameless(here.path);
  CHECK(why("one").find(refusal) == 0);
  CHECK(why("").find(refusal) == 0);
}

TEST_CASE("whoever reads a checkpoint hears of it after each slice, and may end it") {
  random_source random(3);
  const empty_folder here("alive");
  auto all = random_tensors(random);
  save(here.path, 1, deal(random, cut(random, all), 2));
  int heard = 0;
  const auto found = find_checkpoint(here.path, [&] { ++heard; });
  REQUIRE(found.newest);
  CHECK(heard == static_cast<int>(found.newest->slices.size()));
  struct enough : error {
    using error::error;
  };
  if (heard > 0) CHECK_THROWS_AS((void)find_checkpoint(here.path, [] { throw enough("enough"); }), enough);
}
