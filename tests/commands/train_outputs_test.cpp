// SPDX-License-Identifier: Apache-2.0
// What a training tells beside its state ends no training and holds none up.
#include <algorithm>
#include <csignal>
#include <string>

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "processes.hpp"
#include "workplace.hpp"

using namespace hetsched::test;

namespace {

const std::string small = "hetsched-train --layers 1 --hidden 32 --heads 4 --sequence 32 --microbatches 2 --checkpoint state ";

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// A pipe whose reader stands still while this lives.
class still_reader {
 public:
  explicit still_reader(const std::string& path) {
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    end_ = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
    REQUIRE(end_ >= 0);
  }
  still_reader(const still_reader&) = delete;
  still_reader& operator=(const still_reader&) = delete;
  ~still_reader() { ::close(end_); }

 private:
  int end_ = -1;
};

}  // namespace

TEST_CASE("a full disk for the log or the metrics costs no step") {
  for (const std::string option : {"--log", "--metrics"}) {
    CAPTURE(option);
    const workplace w;
    const auto done = w.run(small + "--steps 12 --every 5 " + option + " /dev/full");
    CAPTURE(done.errors);
    CHECK(done.status == 0);
    CHECK(contains(done.output, "12 steps from 0"));
    CHECK(fs::exists(w.path("state/step-000012")));
    CHECK(contains(done.errors, "/dev/full: "));
    CHECK(contains(done.errors, "No space left on device; the training goes on without it\n"));
    if (option == "--log") CHECK(contains(done.errors, "/dev/full: 12 texts were not written\n"));
    CHECK(std::count(done.errors.begin(), done.errors.end(), '\n') == 2);
  }
}

TEST_CASE("losses of a training that goes on stand behind those of its earlier steps") {
  const workplace w;
  REQUIRE(w.run(small + "--steps 4 --losses losses.csv").status == 0);
  const auto first = w.get("losses.csv");
  w.put("losses.csv", first + "4,9.9\n5,8");  // steps behind the checkpoint, the last of them cut off
  REQUIRE(w.run(small + "--steps 7 --losses losses.csv --resume").status == 0);
  const auto all = w.get("losses.csv");
  CHECK(all.starts_with(first + "4,"));
  CHECK(all.find("9.9") == std::string::npos);
  REQUIRE(w.run(small + "--steps 7 --losses losses.csv --resume").status == 0);  // nothing is left to do
  CHECK(w.get("losses.csv") == all);
  fs::remove_all(w.path("state"));
  REQUIRE(w.run(small + "--steps 7 --losses whole.csv").status == 0);
  CHECK(w.get("whole.csv") == all);
  w.put("other.csv", "not a table\n");
  REQUIRE(w.run(small + "--steps 8 --losses other.csv --resume").status == 0);
  CHECK(w.get("other.csv").starts_with("step,loss\n7,"));
}

TEST_CASE("the status page is there while a training runs, and tells how it ended") {
  const workplace w;
  process trains(w, small + "--ranks 2 --steps 1000000 --status status.html", "trains");
  REQUIRE(appears(w.path("status.html")));
  const auto page = w.get("status.html");
  CHECK(page.ends_with("</html>\n"));
  CHECK(contains(page, "http-equiv=\"refresh\""));
  CHECK(contains(page, " of 1000000</title>"));
  for (const std::string part :
       {"Loss by step", "Computes (line: median)", "Holds", "rank 1</text>", "computes longest", "Timeline of step "})
    CHECK(contains(page, part));
  trains.signal(SIGTERM);
  CHECK(trains.wait(60).status == 3);
  const auto last = w.get("status.html");
  CHECK(contains(last, ": stopped by signal 15."));
  CHECK(!contains(last, "http-equiv"));
  fs::remove_all(w.path("state"));
  const auto full = w.run(small + "--steps 5 --status /dev/full");
  CHECK(full.status == 0);
  CHECK(contains(full.errors, "/dev/full: "));
}

TEST_CASE("a disk that fills up leaves whole lines in the log and the losses") {
  const workplace w;
  struct rlimit before = {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  struct rlimit tight = before;
  tight.rlim_cur = 3000;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &tight) == 0);
  const auto done = w.run("hetsched-train --layers 1 --hidden 32 --heads 4 --sequence 32 --steps 60 --log log.jsonl");
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  CAPTURE(done.errors);
  CHECK(done.status == 0);
  CHECK(contains(done.errors, "log.jsonl: cannot be written: File too large"));
  const auto log = w.get("log.jsonl");
  CHECK(log.starts_with("{\"level\""));
  CHECK(log.ends_with("}\n"));
}

TEST_CASE("a reader of standard output that goes away is told, and the training comes to its end") {
  const workplace w;
  const auto done = w.run(small + "--steps 30 --log /dev/stdout 2> said | head -n 1");
  const auto said = w.get("said");
  CAPTURE(said);
  CHECK(contains(done.output, "\"step\":0,"));
  CHECK(contains(said, "/dev/stdout: cannot be written: Broken pipe"));
  CHECK(contains(said, "standard output cannot be written: Broken pipe"));
  CHECK(fs::exists(w.path("state/step-000030")));
}

TEST_CASE("a pipe that nobody reads holds no training up: it is told how much was dropped") {
  const workplace w;
  const still_reader reader(w.path("pipe"));
  const auto done = process(w, small + "--steps 1500 --log pipe", "log").wait(30);
  CAPTURE(done.errors);
  CHECK(done.status == 0);
  CHECK(fs::exists(w.path("state/step-001500")));
  CHECK(contains(done.errors, "pipe: what reads it, or the disk, "));
  CHECK(contains(done.errors, " texts were not written\n"));
}

TEST_CASE("standard error that nobody reads holds no training up") {
  const workplace w;
  const still_reader reader(w.path("pipe"));
  // More than the pipe takes: a line for each of many orders that are solved again.
  const auto run = small + "--ranks 2 --steps 800 --replan-every 1 --replan-gain -1";
  const auto done = w.run(run + " 2> pipe; echo status $?");
  CHECK(contains(done.output, "status 0"));
  CHECK(fs::exists(w.path("state/step-000800")));
}

TEST_CASE("each file that is asked for at the end is tried, and the first that cannot be written is the status") {
  const workplace w;
  const auto done = w.run(small + "--steps 3 --trace /dev/full --out-plan plan.json --losses losses.csv");
  CAPTURE(done.errors);
  CHECK(done.status == 3);
  CHECK(contains(done.errors, "/dev/full: writing failed: No space left on device"));
  CHECK(contains(done.output, "3 steps from 0"));
  CHECK(contains(done.output, "wrote losses.csv\nwrote plan.json\n"));
  CHECK(!contains(done.output, "/dev/full"));
  CHECK(fs::exists(w.path("plan.json")));
}
