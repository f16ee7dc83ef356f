// SPDX-License-Identifier: Apache-2.0
// hetsched-reshard as a user calls it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <hetsched/io/json/cluster_json.hpp>
#include <hetsched/reshard.hpp>

#include "workplace.hpp"

using namespace hetsched;
using test::workplace;

namespace {

// HetAuto App. E; and a subcluster that nothing leads to, one that is large, and one with a colon in its name.
std::string cluster_text(const std::string& latency_us) {
  std::string text = R"({"format": "hetsched/cluster", "version": 1, "subclusters": [)";
  const auto add = [&](const std::string& name, int nodes) {
    text += R"({"name": ")" + name + R"(", "device": "A100-SXM4-80GB", "devices_per_node": 8, "nodes": )" +
            std::to_string(nodes) +
            R"(, "intra_node": {"gbit_per_s": 4800, "latency_us": 2}, "inter_node": {"gbit_per_s": 100, "latency_us": 10}})";
  };
  add("a", 2);
  text += ", ";
  add("b", 2);
  text += ", ";
  add("alone", 1);
  text += ", ";
  add("big", 2048);
  text += ", ";
  add("x:y", 1);
  return text + R"(], "links": [{"between": ["a", "b"], "gbit_per_s": 10, "latency_us": )" + latency_us +
         R"(}, {"between": ["a", "x:y"], "gbit_per_s": 10, "latency_us": 10}]})";
}

const std::string app_e = " --shape 16,8192,4096 --dtype bf16 ";

std::string on(const std::string& name, int data) {
  return name + ":0:2x8:" + std::to_string(data) + ",1," + std::to_string(16 / data);
}

std::size_t count(const std::string& text, const std::string& piece) {
  std::size_t found = 0;
  for (auto at = text.find(piece); at != std::string::npos; at = text.find(piece, at + piece.size())) ++found;
  return found;
}

}  // namespace

TEST_CASE("hetsched-reshard --json: HetAuto App. E's twenty pairs, as the library prices them") {
  const workplace w;
  w.put("c.json", cluster_text("13100"));
  const auto c = read_cluster(w.path("c.json"));
  std::vector<device_id> devices = devices_of(c, {{.mesh = {0, 2, 8}}, {.mesh = {1, 2, 8}}});
  double worst_s = 0;
  std::int64_t worst_messages = 0;
  for (int a = 1; a <= 16; a *= 2)
    for (int b = 1; b <= 16; b *= 2) {
      if (a == b) continue;
      const auto result =
          w.run("hetsched-reshard --cluster c.json --json" + app_e + "--from " + on("a", a) + " --to " + on("b", b));
      CAPTURE(a);
      CAPTURE(b);
      CAPTURE(result.errors);
      REQUIRE(result.status == 0);
      const auto json = nlohmann::ordered_json::parse(result.output);
      std::vector<std::string> keys;
      for (const auto& [key, ignored] : json.items()) keys.push_back(key);
      CHECK(keys == std::vector<std::string>{"strategies", "chosen"});
      const auto& strategies = json.at("strategies");
      REQUIRE(strategies.size() == all_reshard_strategies.size());
      const auto priced =
          price_strategies(c, devices, boundary_layout({.data = a, .tensor = 16 / a}, 16, 8192, 4096),
                           boundary_layout({.data = b, .tensor = 16 / b}, 16, 8192, 4096), 2, {.outer = std::min(a, b)});
      for (std::size_t s = 0; s < priced.size(); ++s) {
        const auto& found = strategies[s];
        keys.clear();
        for (const auto& [key, ignored] : found.items()) keys.push_back(key);
        CHECK(keys ==
              std::vector<std::string>{"name", "seconds", "occupied_s", "messages", "cross_bytes", "peak_extra_bytes", "chunks"});
        CHECK(found.at("name") == name_of(priced[s].strategy));
        CHECK(found.at("seconds") == priced[s].price.seconds);
        CHECK(found.at("occupied_s") == priced[s].price.occupied_s);
        CHECK(found.at("messages") == priced[s].price.messages);
        CHECK(found.at("cross_bytes") == priced[s].price.cross_bytes);
        CHECK(found.at("peak_extra_bytes") == priced[s].price.peak_extra_bytes);
        CHECK(found.at("chunks") == priced[s].plan.chunks);
      }
      CHECK(json.at("chosen") == name_of(cheapest(priced).strategy));
      const auto& direct = strategies[0];
      if (direct.at("seconds").get<double>() > worst_s * (1 + 1e-9)) {
        worst_s = direct.at("seconds");
        worst_messages = direct.at("messages");
      }
    }
  CHECK(worst_messages == 256);
  CHECK(worst_s == doctest::Approx(2.10784).epsilon(0.005));
}

TEST_CASE("hetsched-reshard: a table, and a picture of the chosen strategy or of another") {
  const workplace w;
  w.put("c.json", cluster_text("1000"));
  const std::string call = "hetsched-reshard --cluster c.json --from " + on("a", 16) + " --to " + on("b", 1) + app_e;
  const auto table = w.run(call);
  CHECK(table.status == 0);
  CHECK(table.complaints().empty());
  for (const auto s : all_reshard_strategies) CHECK(table.output.find(std::string(name_of(s)) + ' ') != std::string::npos);
  CHECK(count(table.output, "chosen") == 1);
  const auto chosen = nlohmann::json::parse(w.run(call + "--json").output).at("chosen").get<std::string>();

  const auto drawn = w.run(call + "--svg chosen.svg");
  CHECK(drawn.status == 0);
  CHECK(drawn.output == table.output + "wrote chosen.svg\n");
  CHECK(w.get("chosen.svg").find(">" + chosen + ": a:0:2x8:16,1,1 to b:0:2x8:1,1,16, ") != std::string::npos);
  CHECK(w.run(call + "--svg direct.svg --strategy direct --json").status == 0);
  const auto direct = w.get("direct.svg");
  CHECK(direct.find(">direct: ") != std::string::npos);
  CHECK(count(direct, "<path ") == 256);
}

TEST_CASE("the picture of docs/reshard.md is what its command draws") {
  const workplace w;
  const std::string docs = HETSCHED_SOURCE_DIR "/docs/";
  const auto page = read_text(docs + "reshard.md");
  const std::string fence = "```json two-kinds.json\n", prompt = "$ hetsched-reshard ";
  const auto json = page.find(fence), command = page.find(prompt);
  REQUIRE(json != std::string::npos);
  REQUIRE(command != std::string::npos);
  w.put("two-kinds.json", page.substr(json + fence.size(), page.find("```\n", json + 3) - json - fence.size()));
  REQUIRE(w.run(page.substr(command + 2, page.find('\n', command) - command - 2)).status == 0);
  CHECK(w.get("reshard.svg") == read_text(docs + "diagrams/reshard.svg"));
}

TEST_CASE("hetsched-reshard: inside a node and a subcluster, replicas, uneven parts, parts with nothing in them") {
  const workplace w;
  w.put("c.json", cluster_text("1000"));
  const auto strategies = [&](const std::string& line) {
    const auto result = w.run("hetsched-reshard --cluster c.json --json --dtype fp32 " + line);
    CAPTURE(line);
    CAPTURE(result.errors);
    REQUIRE(result.status == 0);
    return nlohmann::json::parse(result.output).at("strategies");
  };
  const auto near = strategies("--from a:0:1x4:4,1,1 --to a:4:1x4:1,1,4 --shape 8,8,8");
  const auto far = strategies("--from a:0:1x8:8,1,1 --to a:8:1x8:1,1,8 --shape 8,8,8");
  CHECK(near[0].at("seconds").get<double>() == doctest::Approx(4 * (2e-6 + 32 * 4 / 600e9)));
  CHECK(far[0].at("seconds").get<double>() == doctest::Approx(64 * (10e-6 + 8 * 4 / 12.5e9)));
  // Names may have colons, and spaces may stand where they help.
  CHECK(strategies("--from 'x:y: 0: 1 x 8: 8, 1, 1' --to " + on("a", 1) + " --shape 8,16,8")[0].at("messages") == 128);
  // Without sequence parallelism every tensor rank wants all of it: scatter_gather sends it across once.
  const auto copies = strategies("--from " + on("a", 16) + " --to " + on("b", 4) + " --shape 16,8,4 --replicated");
  CHECK(copies[0].at("cross_bytes") == 4 * 16 * 8 * 4 * 4);
  CHECK(copies[4].at("cross_bytes") == 16 * 8 * 4 * 4);
  // A batch of 3 on 4 replicas, a sequence of 5 on 16 devices.
  for (const auto& s : strategies("--from " + on("a", 4) + " --to " + on("b", 1) + " --shape 3,5,7"))
    CHECK(s.at("cross_bytes") == 3 * 5 * 7 * 4);
  for (const auto& s : strategies("--from " + on("a", 16) + " --to " + on("b", 1) + " --shape 1,1,1"))
    CHECK(s.at("cross_bytes") == 4);
  // Large numbers: an exabyte.
  CHECK(strategies("--from " + on("a", 16) + " --to " + on("b", 1) + " --shape 1000000000,1000000000,1")[0].at("cross_bytes") ==
        4'000'000'000'000'000'000);
}

TEST_CASE("hetsched-reshard without a link: status 1") {
  const workplace w;
  w.put("c.json", cluster_text("1000"));
  const auto result =
      w.run("hetsched-reshard --cluster c.json --from alone:0:1x8:8,1,1 --to " + on("b", 1) + app_e + "--svg s.svg --json");
  CHECK(result.status == 1);
  CHECK(result.output.empty());
  CHECK(result.errors == "hetsched-reshard: no link joins alone and b\n");
  CHECK(w.files().count("s.svg") == 0);
}

TEST_CASE("bad input to hetsched-reshard: status 2, one line that names the cause, nothing written") {
  const workplace w;
  w.put("c.json", cluster_text("1000"));
  w.put("model.json", R"({"format": "hetsched/model", "version": 1})");
  struct row {
    std::string options, part;
  };
  const std::string to = " --to b:0:2x8:1,1,16 ", sides = "--from a:0:2x8:16,1,1" + to, shape = "--shape 16,16,16 ",
                    dtype = "--dtype bf16 ", rest = to + shape + dtype;
  const row rows[] = {
      {"", "--from is required"},
      {sides + dtype, "--shape is required"},
      {"--from a:0:2x8" + rest, "--from: found \"a:0:2x8\", expected SUBCLUSTER:FIRST:NODESxDEVICES:DATA,CONTEXT,TENSOR, as in"},
      {"--from ''" + rest, "--from: found \"\", expected SUBCLUSTER"},
      {"--from c:0:2x8:16,1,1" + rest, "--from: the cluster has no subcluster \"c\""},
      {"--from a:-1:2x8:16,1,1" + rest, "--from, first device: found \"-1\", expected a whole number from 0 to 1000000000"},
      {"--from a:0:16:16,1,1" + rest, "--from, nodes x devices: found \"16\", expected 2 numbers with 'x' between them"},
      {"--from a:0:2x8:16,1" + rest, "--from, degrees: found \"16,1\", expected 3 numbers with ',' between them"},
      {"--from a:0:2x8:16,1,one" + rest, "--from, degrees: found \"one\", expected a whole number from 1"},
      {"--from a:0:2x8:16,0,1" + rest, "--from, degrees: found \"0\", expected a whole number from 1"},
      {"--from a:0:2x8:8,1,1" + rest, "--from: degrees 8,1,1 do not multiply to 16 devices"},
      {"--from a:0:2x8:999999999,999999999,999999999" + rest, "do not multiply to 16 devices"},
      {"--from a:99999999999999999999:2x8:16,1,1" + rest, "--from, first device: found \"99999999999999999999\""},
      {"--from a:8:2x8:16,1,1" + rest, "--from: subcluster a has 2x8 devices, found 2x8 from device 8 on"},
      {"--from a:0:999999999x999999999:16,1,1" + rest, "--from: subcluster a has 2x8 devices, found 999999999x999999999"},
      {"--from a:0:1x16:16,1,1" + rest, "--from: subcluster a has 2x8 devices, found 1x16"},
      {"--from a:4:1x8:8,1,1" + rest, "devices 4 to 11 of a lie on 2 nodes of 8; expected a part of one node, or whole nodes"},
      {"--from a:0:2x4:8,1,1" + rest, "devices 0 to 7 of a lie on 1 node of 8; expected a part of one node, or whole nodes"},
      {"--from b:0:1x8:8,1,1" + rest, "--to: device 0 of b is one of --from too"},
      {"--from b:15:1x1:1,1,1" + rest, "--to: device 15 of b is one of --from too"},
      {"--from big:0:512x8:4096,1,1 --to big:4096:512x8:1,1,4096 " + shape + dtype,
       "--from, --to: up to 16777216 messages, expected 4194304 at most"},
      {"--from big:0:64x8:512,1,1 --to big:4096:64x8:1,1,512 --svg s.svg " + shape + dtype,
       "--svg: up to 262144 messages, expected 100000 at most"},
      {sides + dtype + "--shape 16,16", "--shape: found \"16,16\", expected 3 numbers"},
      {sides + dtype + "--shape 16,16,16,16", "--shape: found \"16,16,16,16\", expected 3 numbers"},
      {sides + dtype + "--shape 16,0,16", "--shape: found \"0\", expected a whole number from 1"},
      {sides + dtype + "--shape 16,1.5,16", "--shape: found \"1.5\", expected a whole number from 1"},
      {sides + dtype + "--shape 1000000000,1000000000,2",
       "--shape: found 1000000000,1000000000,2, expected 1e18 elements at most"},
      {sides + shape + "--dtype BF16", "--dtype: found BF16, expected one of fp64, fp32"},
      {sides + shape + dtype + "--outer 2", "--outer: 2 does not divide both data degrees, 16 and 1"},
      {sides + shape + dtype + "--svg s.svg --strategy best", "--strategy: found best, expected one of direct, one_to_one"},
      {sides + shape + dtype + "--strategy direct", "--strategy requires --svg"},
      {sides + shape + dtype + "--svg none/s.svg", "none/s.svg: there is no folder none"},
      {sides + shape + dtype + "--svg c.json", "c.json: an input, which would be overwritten"},
      {sides + shape + dtype + "--cluster model.json --svg s.svg", "model.json: /format"},
  };
  const auto before = w.files();
  for (const auto& r : rows) {
    CAPTURE(r.options);
    const bool own = r.options.find("--cluster") != std::string::npos;
    const auto result = w.run("hetsched-reshard " + std::string(own ? "" : "--cluster c.json ") + r.options);
    CAPTURE(result.errors);
    CHECK(result.status == 2);
    CHECK(result.output.empty());
    CHECK(result.errors.find(r.part) != std::string::npos);
    CHECK(result.errors.find('\n') == result.errors.size() - 1);
  }
  CHECK(w.files() == before);
}
