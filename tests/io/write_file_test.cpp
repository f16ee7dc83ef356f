// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include <hetsched/io/json_reader.hpp>
#include <hetsched/io/write_file.hpp>

namespace fs = std::filesystem;

TEST_CASE("a file is written whole, replaced whole, and leaves nothing else behind") {
  const auto folder = fs::temp_directory_path() / ("hetsched_write_" + std::to_string(::getpid()));
  fs::create_directory(folder);
  const auto path = (folder / "a.json").string();
  hetsched::write_file(path, "first");
  hetsched::write_file(path, std::string(100'000, 'x'));
  CHECK(hetsched::read_text(path) == std::string(100'000, 'x'));
  CHECK(std::distance(fs::directory_iterator(folder), fs::directory_iterator()) == 1);

  // A folder cannot be replaced by a file: the temporary one is removed again.
  fs::create_directories(folder / "taken" / "inside");
  CHECK_THROWS_AS(hetsched::write_file((folder / "taken").string(), "text"), hetsched::error);
  CHECK_THROWS_AS(hetsched::write_file((folder / "none" / "a.json").string(), "text"), hetsched::error);
  CHECK(std::distance(fs::directory_iterator(folder), fs::directory_iterator()) == 2);

  CHECK_NOTHROW(hetsched::check_writable(path));
  CHECK_THROWS_AS(hetsched::check_writable((folder / "none" / "a.json").string()), hetsched::input_error);
  CHECK_THROWS_AS(hetsched::check_writable((folder / "taken").string()), hetsched::input_error);
  fs::remove_all(folder);
}
