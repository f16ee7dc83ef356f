// SPDX-License-Identifier: Apache-2.0
// The files that commands read and write: none is lost to another.
#include <filesystem>
#include <functional>
#include <string>

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <doctest/doctest.h>

#include <hetsched/io.hpp>

#include "../../examples/commands/command.hpp"
#include "workplace.hpp"

using namespace hetsched;
using test::workplace;

namespace {

std::string complaint(const std::function<void()>& work) {
  try {
    work();
  } catch (const input_error& wrong) {
    return wrong.what();
  }
  return "";
}
bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const std::string pipeline_text = R"({"format": "hetsched/pipeline", "version": 1, "microbatches": 4,
  "forward_s": [1, 1], "backward_s": [2, 2], "transfer_s": [0.5]})";

}  // namespace

TEST_CASE("two outputs may not be one file, by whatever names") {
  const workplace w;
  std::filesystem::create_directory(w.path("below"));
  w.put("a", "old");
  std::filesystem::create_symlink("a", w.path("link"));
  std::filesystem::create_symlink("b", w.path("dangling"));
  std::filesystem::create_symlink("below", w.path("same_folder"));
  std::filesystem::create_hard_link(w.path("a"), w.path("twin"));
  const std::pair<const char*, const char*> equal[] = {{"a", "a"},        {"a", "./a"},      {"a", "below/../a"},
                                                       {"a", "link"},     {"link", "twin"},  {"b", "./b"},
                                                       {"b", "dangling"}, {"dangling", "b"}, {"below/c", "same_folder/c"}};
  for (const auto& [first, second] : equal) {
    CAPTURE(first);
    CAPTURE(second);
    command::outputs files;
    files.expect(w.path(first));
    files.expect("");
    const auto why = complaint([&, s = second] { files.expect(w.path(s)); });
    CHECK(holds(why, w.path(second) + ": "));
    CHECK(holds(why, w.path(first)));
    CHECK(holds(why, "two outputs"));

    command::outputs once;
    once.expect(w.path(first));
    CHECK(holds(complaint([&, s = second] { once.reads(w.path(s)); }), "an input") == std::filesystem::exists(w.path(second)));
  }
  command::outputs files;
  for (const char* name : {"a", "b", "c", "below/a"}) files.expect(w.path(name));
}

TEST_CASE("an output may not be an input, whichever is named first") {
  const workplace w;
  w.put("a", "old");
  std::filesystem::create_symlink("a", w.path("link"));
  command::outputs files;
  files.reads(w.path("a"));
  files.reads(w.path("none"));
  files.reads("");
  CHECK(complaint([&] { files.expect(w.path("link")); }) ==
        w.path("link") + ": is " + w.path("a") + ", an input, which would be overwritten");
  CHECK(complaint([&] { files.expect(w.path("./a")); }) != "");
  files.expect(w.path("b"));
  CHECK(complaint([&] { files.reads(w.path("b")); }) == "");  // not there: reading it fails in its own words
}

TEST_CASE("streams may be named several times") {
  const workplace w;
  std::string null = "/dev/null";
  if (::mknod(w.path("null").c_str(), S_IFCHR | 0600, ::makedev(1, 3)) == 0 && std::ofstream(w.path("null")))
    null = w.path("null");
  command::outputs files;
  files.reads(null);
  for (int i = 0; i < 2; ++i) {
    files.expect(null);
    files.add(null, "gone");
  }
  files.write();
  struct ::stat status = {};
  REQUIRE(::stat(null.c_str(), &status) == 0);
  CHECK(S_ISCHR(status.st_mode));

  w.put("pipeline.json", pipeline_text);
  const std::string play = "hetsched-simulate --pipeline pipeline.json --schedule 1f1b ";
  const auto printed = w.run(play + "--trace /dev/stdout --schedule-csv /dev/stdout");
  CHECK(printed.status == 0);
  CHECK(holds(printed.output, "traceEvents"));
  CHECK(holds(printed.output, "0F0"));
  // A file behind standard output: all of it is there, one after the other.
  CHECK(w.run(play + "--trace /dev/stdout --schedule-csv /dev/stdout > out.txt").status == 0);
  CHECK(w.get("out.txt") == printed.output);
  const auto clash = w.run(play + "--trace /dev/stdout --schedule-csv out.txt > out.txt");
  CHECK(clash.status == 2);
  CHECK(holds(clash.errors, "two outputs"));
}

TEST_CASE("commands refuse to write over what they read: status 2, nothing touched") {
  const workplace w;
  const std::string data = HETSCHED_SOURCE_DIR "/examples/data/";
  for (const char* name : {"cluster.json", "model.json", "profile.json"}) w.put(name, read_text(data + name));
  w.put("pipeline.json", pipeline_text);
  w.put("operators.csv", "op,batch,m,n,k,dtype\nmatmul,1,64,64,64,fp16\n");
  REQUIRE(
      w.run("hetsched-simulate --pipeline pipeline.json --schedule 1f1b --trace trace.json --schedule-csv order.csv").status ==
      0);
  std::filesystem::create_symlink("pipeline.json", w.path("link.json"));
  const std::string plan = "hetsched-plan --cluster cluster.json --model model.json --profile profile.json --global-batch 8 ";
  const std::string simulate = "hetsched-simulate --pipeline pipeline.json --schedule @order.csv ";
  const std::string compare = "hetsched-compare-timeline --pipeline pipeline.json --schedule @order.csv --measured trace.json ";
  const std::string lines[] = {
      plan + "--out ./cluster.json",
      plan + "--out plan.json --report model.json",
      plan + "--out profile.json",
      simulate + "--trace link.json",
      simulate + "--report ./order.csv",
      compare + "--report trace.json",
      compare + "--report order.csv",
      compare + "--report pipeline.json",
      "hetsched-predict --operators operators.csv --device A100-SXM4-40GB --out ./operators.csv",
      "sailor-to-profile --csv operators.csv --measured-model m --model model.json --gpu a=b --out model.json",
      "metis-to-profile --measured operators.csv --model model.json --gpu a=b --out ./operators.csv",
      "galvatron-to-profile --measured operators.csv --model model.json --gpu a=b --out model.json",
  };
  const auto before = w.files();
  for (const auto& line : lines) {
    CAPTURE(line);
    const auto result = w.run(line);
    CAPTURE(result.errors);
    CHECK(result.status == 2);
    CHECK(holds(result.errors, "an input, which would be overwritten"));
    CHECK(result.errors.find('\n') == result.errors.size() - 1);
  }
  CHECK(w.files() == before);
  CHECK(w.get("pipeline.json") == pipeline_text);
}
