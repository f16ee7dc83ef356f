// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <string>

#include <doctest/doctest.h>

#include <hetsched/io/schedule_csv.hpp>

namespace fs = std::filesystem;
using namespace hetsched;

TEST_CASE("a schedule in a file comes back equal; an error names the file, the row and the column") {
  const auto folder = fs::temp_directory_path() / ("hetsched_schedule_" + std::to_string(::getpid()));
  fs::create_directory(folder);
  const auto path = (folder / "order.csv").string();
  auto order = make_schedule(2, 2, {0, 1, 1, 0});
  for (const int stage : {0, 3})
    for (int m = 0; m < 2; ++m) order.lanes[0].actions.push_back({.kind = action_kind::forward, .stage = stage, .microbatch = m});
  for (const int stage : {1, 2})
    for (int m = 0; m < 2; ++m) order.lanes[1].actions.push_back({.kind = action_kind::forward, .stage = stage, .microbatch = m});
  write_schedule(path, order);
  CHECK(read_text(path) == "0F0,0F1,3F0,3F1\n1F0,1F1,2F0,2F1\n");
  CHECK(read_schedule(path) == order);

  write_file(path, "0F0,0B0\n1F0,1Q0\n");
  try {
    (void)read_schedule(path);
    FAIL("read a wrong cell");
  } catch (const file_error& wrong) {
    const std::string what = wrong.what();
    CAPTURE(what);
    CHECK(wrong.file() == path);
    CHECK(what.starts_with(path + ": "));
    CHECK(what.find("row 2, column 2") != std::string::npos);
    CHECK(what.find("1Q0") != std::string::npos);
  }
  CHECK_THROWS_AS((void)read_schedule((folder / "none.csv").string()), file_error);
  CHECK_THROWS_AS(write_schedule((folder / "none" / "order.csv").string(), order), error);
  fs::remove_all(folder);
}
