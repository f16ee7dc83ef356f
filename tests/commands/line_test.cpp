// SPDX-License-Identifier: Apache-2.0
// Help, manual pages and completions of the commands say the same; mistyped options and names.
#include <cctype>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "../../examples/commands/command.hpp"
#include "../../examples/commands/line/completion.hpp"
#include "../../examples/commands/line/help.hpp"
#include "../../examples/commands/line/manual.hpp"
#include "../../examples/commands/names.hpp"
#include "../../examples/commands/version.hpp"
#include "workplace.hpp"

using hetsched::test::workplace;

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// Every --name in a text; roff's fonts are left out, and a backslash stands for nothing.
std::set<std::string> long_options(std::string text) {
  for (const char* font : {"\\fB", "\\fI", "\\fR"})
    for (auto at = text.find(font); at != std::string::npos; at = text.find(font)) text.replace(at, 3, " ");
  std::erase(text, '\\');
  std::set<std::string> names;
  for (std::size_t at = text.find("--"); at != std::string::npos; at = text.find("--", at + 1)) {
    auto end = at + 2;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '-')) ++end;
    const bool begins = at == 0 || !(std::isalnum(static_cast<unsigned char>(text[at - 1])) || text[at - 1] == '-');
    if (begins && end > at + 2) names.insert(text.substr(at, end - at));
    at = end - 1;
  }
  return names;
}

/// Those that have an entry in --help.
std::set<std::string> options_in_help(const std::string& help) {
  std::set<std::string> names;
  for (const auto& line : lines_of(help))
    if (line.starts_with("  -")) names.merge(long_options(line.substr(0, line.find("  ", 2))));
  return names;
}

std::set<std::string> options_in_fish(const std::string& text) {
  std::set<std::string> names;
  for (const auto& line : lines_of(text)) {
    if (!line.starts_with("complete")) continue;
    for (auto at = line.find(" -l "); at != std::string::npos; at = line.find(" -l ", at + 4))
      names.insert("--" + line.substr(at + 4, line.find(' ', at + 4) - at - 4));
  }
  return names;
}

std::set<std::string> options_in_lines(const std::string& text, const std::string& begin) {
  std::set<std::string> names;
  for (const auto& line : lines_of(text))
    if (line.starts_with(begin)) names.merge(long_options(line.substr(0, line.find_first_of("[", begin.size()))));
  return names;
}

std::vector<std::string> programs() {
  std::vector<std::string> names{"hetsched"};
  for (const auto& c : command::commands)
    if (std::filesystem::exists(HETSCHED_COMMAND_DIR "/" + c.program())) names.push_back(c.program());
  return names;
}

/// What the app says of a command line: the status and standard error.
std::pair<int, std::string> parse(CLI::App& app, std::vector<std::string> words) {
  words.insert(words.begin(), "prog");
  std::vector<char*> argv;
  for (auto& w : words) argv.push_back(w.data());
  std::ostringstream text;
  auto* const before = std::cerr.rdbuf(text.rdbuf());
  const int status = command::run(app, static_cast<int>(argv.size()), argv.data(), [] { return 0; });
  std::cerr.rdbuf(before);
  return {status, text.str()};
}

struct sample {
  command::application app{"Does it.", "prog"};
  int count = 2;
  double share = 0;
  std::string file, word, given;
  std::vector<std::string> names;

  sample() {
    app.add_option("--count", count, "of all")->check(CLI::Range(1, 9))->capture_default_str();
    app.add_option("--share,-s", share, "of the [whole]: it's \\ all");
    app.add_option("--word", word, "one")->check(CLI::IsMember({"some", "other"}))->required();
    auto* const group = app.add_option_group("g", "Group");
    group->add_option("--file", file, "to read")->excludes(app.get_option("--word"));
    app.add_option("input", given, "what it is done to");
    app.footer("prog --word some");
  }
};

}  // namespace

TEST_CASE("help, manual page and completions of every command name the same options") {
  const workplace w;
  REQUIRE(programs().size() > 5);
  for (const auto& name : programs()) {
    CAPTURE(name);
    const auto help = w.run(name + " --help");
    REQUIRE(help.status == 0);
    const auto options = options_in_help(help.output);
    CHECK(options.contains("--version"));
    for (const char* everywhere : {"--quiet", "--json"}) CHECK(options.contains(everywhere) == (name != "hetsched"));
    CHECK(options.size() >= 2);
    for (const auto& line : lines_of(help.output)) {
      CAPTURE(line);
      CHECK(line.size() <= 100);
    }
    CHECK(has(help.output, "\nExit status:\n"));
    const auto examples = help.output.find("\nExamples:\n");
    REQUIRE(examples != std::string::npos);
    if (name != "hetsched")
      for (const auto& option : long_options(help.output.substr(examples))) CHECK_MESSAGE(options.contains(option), option);

    const auto manual = w.run(name + " --manual-page").output;
    CHECK(options_in_lines(manual, "\\fB") == options);
    for (const auto* title : {".SH NAME", ".SH SYNOPSIS", ".SH EXIT STATUS", ".SH EXAMPLES"}) CHECK(has(manual, title));
    const auto bash = w.run(name + " --completion bash").output;
    CHECK(options_in_lines(bash, "  COMPREPLY=($(compgen") == options);
    CHECK(options_in_lines(w.run(name + " --completion zsh").output, "  '-") == options);
    CHECK(options_in_fish(w.run(name + " --completion fish").output) == options);
    const auto version = w.run(name + " --version");
    CHECK(version.status == 0);
    CHECK(version.output == name + " " + std::string(command::version) + "\n");
  }
}

TEST_CASE("under --quiet a command prints errors, and what --json asks for") {
  const workplace w;
  w.put("pipeline.json", R"({"format": "hetsched/pipeline", "version": 1, "microbatches": 4,
    "forward_s": [1, 1], "backward_s": [2, 2], "transfer_s": [0.5]})");
  const std::string play = "hetsched-simulate --pipeline pipeline.json --schedule 1f1b ";
  const auto loud = w.run(play + "--trace loud.json"), quiet = w.run(play + "-q --trace quiet.json");
  CHECK(loud.status == 0);
  CHECK(has(loud.output, "makespan"));
  CHECK(quiet.status == 0);
  CHECK(quiet.output + quiet.errors == "");
  CHECK(w.get("quiet.json") == w.get("loud.json"));
  CHECK(w.run(play + "--json --quiet").output == w.run(play + "--json").output);
  CHECK(has(w.run("hetsched-simulate --quiet --pipeline none.json --schedule 1f1b").errors, "none.json"));
}

TEST_CASE("the version is that of the project") {
  const auto project = hetsched::read_text(HETSCHED_SOURCE_DIR "/CMakeLists.txt");
  CHECK(has(project, "project(hetsched VERSION " + std::string(command::version) + " "));
}

TEST_CASE("an app is described by its options, ranges, words and groups") {
  sample s;
  command::prepare(s.app);
  const auto help = command::help_text(command::describe(s.app));
  CHECK(help ==
        "Does it.\n"
        "Usage: prog [OPTION]... input\n"
        "\n"
        "Options:\n"
        "  --count N                 of all [1 to 9; default 2]\n"
        "  -s, --share X             of the [whole]: it's \\ all\n"
        "  --word WORD               one [required; one of some, other; not with --file]\n"
        "  input                     what it is done to\n"
        "  -h, --help                print this help\n"
        "  --version                 print the version\n"
        "  -q, --quiet               no progress, and no tables: only errors, files, and what --json prints\n"
        "\n"
        "Group:\n"
        "  --file TEXT               to read [not with --word]\n"
        "\n"
        "Examples:\n"
        "  prog --word some\n"
        "\n"
        "Exit status:\n"
        "  0                         done\n"
        "  1                         no feasible answer; the reason is on standard error\n"
        "  2                         bad input or usage\n"
        "  3                         a fault at run time\n");
  const auto all = command::describe(s.app);
  CHECK(options_in_lines(command::manual_page(all), "\\fB") ==
        std::set<std::string>{"--count", "--file", "--help", "--quiet", "--share", "--version", "--word"});
}

TEST_CASE("mistyped options and integers say what was meant") {
  const struct {
    std::vector<std::string> words;
    std::string says;
  } cases[] = {
      {{"--cuont", "3"}, "prog: there is no option --cuont; did you mean --count? (see --help)\n"},
      {{"--cuont=3", "--word", "some"}, "prog: there is no option --cuont; did you mean --count? (see --help)\n"},
      {{"--word", "some", "--quite-else"}, "prog: there is no option --quite-else (see --help)\n"},
      {{"--word", "some", "in", "more"}, "prog: unexpected argument more (see --help)\n"},
      {{"--word", "some", "--count", "1e3"}, "prog: --count: found 1e3, expected a whole number in digits: 1000 (see --help)\n"},
      {{"--word", "some", "--count", "2.5"}, "prog: --count: found 2.5, expected a whole number (see --help)\n"},
      {{"--count", "3"}, "prog: --word is required (see --help)\n"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.says);
    sample s;
    const auto [status, text] = parse(s.app, c.words);
    CHECK(status == command::bad_input);
    CHECK(text == c.says);
  }
  sample s;
  CHECK(parse(s.app, {"--word", "some", "--count", "3", "--share", "1e-3"}).first == 0);
  CHECK(s.count == 3);
  CHECK(s.share == 1e-3);
}

TEST_CASE("names that may have been meant") {
  CHECK(command::did_you_mean("zbv", {"gpipe", "zb_v", "zb_h1"}) == "; did you mean zb_v?");
  CHECK(command::did_you_mean("h100", {"A100", "H100-PCIe", "H100-SXM5", "H100-NVL"}) ==
        "; did you mean H100-PCIe, H100-SXM5 or H100-NVL?");
  CHECK(command::did_you_mean("gpiep", {"gpipe", "1f1b"}) == "; did you mean gpipe?");
  CHECK(command::did_you_mean("nothing-like-it", {"gpipe", "1f1b"}).empty());
  CHECK(command::did_you_mean("", {"gpipe", "1f1b"}).empty());
  CHECK(command::did_you_mean("--globl-batch", {"--batch", "--global-batch"}) == "; did you mean --global-batch?");
  CHECK(command::did_you_mean("RTX-A5000", {"A5000", "A4000", "RTX5000"}) == "; did you mean A5000?");
  CHECK(command::reworded("--zero: 4 not in {auto,0,1}") == "--zero: found 4, expected one of auto, 0, 1");
  CHECK(command::reworded("--recompute: ful not in {none,full}") ==
        "--recompute: found ful, expected one of none, full; did you mean full?");
  CHECK(command::reworded("--threads: Value 0 not in range 1 to 1024") == "--threads: Value 0 not in range 1 to 1024");
  CHECK(command::unknown_name_text("--schedule", "/dev/null", {"auto", "@FILE"}) ==
        "--schedule: found /dev/null, expected one of auto, @FILE; did you mean @/dev/null?");
}

TEST_CASE("bash completes options, words and the driver's commands") {
  if (std::system("bash -c true >/dev/null 2>&1") != 0) return;
  const workplace w;
  for (const auto* name : {"hetsched", "hetsched-export"}) w.put(name, w.run(std::string(name) + " --completion bash").output);
  // asked(WORDS): what is offered for the last one.
  const auto asked = [&](const std::string& words) {
    w.put("ask",
          "#!/bin/bash\nset -eu\n. ./" + words.substr(0, words.find(' ')) + "\nCOMP_WORDS=(" + words +
              ")\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n\"_$(tr - _ <<<\"${COMP_WORDS[0]}\")\"\necho \"${COMPREPLY[@]}\"\n");
    REQUIRE(std::system(("cd '" + w.path("") + "' && bash ask >answer").c_str()) == 0);
    return w.get("answer");
  };
  CHECK(asked("hetsched-export --to m") == "megatron\n");
  CHECK(asked("hetsched-export --to ''") == "megatron torch torchtitan flagscale deepspeed csv\n");
  CHECK(asked("hetsched-export --to = to") == "torch torchtitan\n");
  CHECK(asked("hetsched-export --to = ") == "megatron torch torchtitan flagscale deepspeed csv\n");
  CHECK(asked("hetsched-export --p") == "--plan\n");
  CHECK(asked("hetsched-export --plan x") == "\n");
  CHECK(asked("hetsched pl") == "plan\n");
  CHECK(asked("hetsched expo") == "export\n");
  CHECK(asked("hetsched export --to m") == "megatron\n");
  CHECK(asked("hetsched export --p") == "--plan\n");
  CHECK(asked("hetsched nothing --p") == "\n");
}

TEST_CASE("the driver starts the command beside it") {
  const workplace w;
  const auto alone = w.run("hetsched");
  CHECK(alone.status == 0);
  for (const auto& c : command::commands) CHECK(has(alone.output, "\n  " + std::string(c.name) + " "));
  const auto started = w.run("hetsched simulate --pipeline none.json --schedule 1f1b");
  CHECK(started.status == 2);
  CHECK(started.errors == w.run("hetsched-simulate --pipeline none.json --schedule 1f1b").errors);
  CHECK(w.run("hetsched export --version").output == w.run("hetsched-export --version").output);
  const auto mistyped = w.run("hetsched simulat");
  CHECK(mistyped.status == 2);
  CHECK(mistyped.errors == "hetsched: there is no command simulat; did you mean simulate? (see --help)\n");
  CHECK(w.run("hetsched --verson").status == 2);
}

TEST_CASE("- is standard input") {
  const workplace w;
  w.put("p.json",
        R"({"format":"hetsched/pipeline","version":1,"microbatches":4,"forward_s":[1,1],"backward_s":[2,2],"transfer_s":[0]})");
  const auto named = w.run("hetsched-simulate --pipeline p.json --schedule 1f1b --json");
  const auto piped = w.run("hetsched-simulate --pipeline - --schedule 1f1b --json < p.json");
  CHECK(named.status == 0);
  CHECK(piped.status == 0);
  CHECK(piped.output == named.output);
}
