// SPDX-License-Identifier: Apache-2.0
#include <hetsched/io/page/transfer_svg.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

#include <hetsched/reshard/price.hpp>

using namespace hetsched;

namespace {

std::size_t count(const std::string& text, const std::string& piece) {
  std::size_t found = 0;
  for (auto at = text.find(piece); at != std::string::npos; at = text.find(piece, at + piece.size())) ++found;
  return found;
}

// What is not well-formed; empty: nothing. Enough of XML for a picture: elements, attributes in double quotes, text, entities.
std::string fault_of(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t at = 0; at < xml.size();) {
    if (xml[at] == '&') {
      const auto end = xml.find(';', at);
      if (end == std::string::npos || end - at > 6) return "a bare &";
      at = end;
    }
    if (xml[at] != '<') {
      if (open.empty() && xml[at] != '\n') return "text outside";
      ++at;
      continue;
    }
    const auto end = xml.find('>', at);
    if (end == std::string::npos) return "a bare <";
    auto tag = xml.substr(at + 1, end - at - 1);
    at = end + 1;
    if (count(tag, "\"") % 2 != 0 || tag.find('<') != std::string::npos) return "a broken tag " + tag;
    if (tag.starts_with('/')) {
      if (open.empty() || open.back() != tag.substr(1)) return "closes " + tag;
      open.pop_back();
      if (open.empty() && at + 1 < xml.size()) return "two roots";
    } else if (!tag.ends_with('/')) {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  return open.empty() ? "" : "leaves open " + open.back();
}

struct sample {
  cluster c;
  std::vector<device_id> devices;
};

sample two_clusters() {
  sample s;
  for (const char* name : {"a", "R&D <b>"}) s.c.subclusters.push_back({name, {}, 2, 4, {1e-6, 1e11}, {1e-5, 1e10}});
  connect(s.c, s.c.subclusters[0].name, s.c.subclusters[1].name, {1e-3, 1e9});
  s.devices = devices_of(s.c, {{.mesh = {0, 2, 4}}, {.mesh = {1, 2, 4}}});
  return s;
}

}  // namespace

TEST_CASE("well-formed, with a line for each message, whatever the strategy") {
  const auto [c, devices] = two_clusters();
  for (const int data : {1, 2, 8})
    for (const bool parallel : {true, false})
      for (const auto s : all_reshard_strategies)
        for (const int chunks : {1, 4}) {
          const auto p =
              plan_transfer(boundary_layout({.data = 8}, 16, 8, 4),
                            boundary_layout({.data = data, .tensor = 8 / data}, 16, 8, 4, parallel), s, {.chunks = chunks});
          const auto svg = transfer_svg(p, c, devices, {.title = "5 < 6 & \"7\"", .element_bytes = 2});
          CAPTURE(std::string(name_of(s)));
          CAPTURE(data);
          CHECK(fault_of(svg) == "");
          CHECK(count(svg, "<path ") == p.messages.size());
          CHECK(count(svg, "class=\"d\"") == 16);
          CHECK(count(svg, "class=\"n\"") == 4);  // nodes
          CHECK((svg.find("in 4 chunks") != std::string::npos) == (p.chunks == 4));
        }
}

TEST_CASE("titles name both ends and the size; the legend adds up; the node's name is escaped") {
  const auto [c, devices] = two_clusters();
  const auto p = plan_transfer(boundary_layout({.data = 8}, 16, 8, 4), boundary_layout({.tensor = 8}, 16, 8, 4),
                               reshard_strategy::one_to_one);
  const auto svg = transfer_svg(p, c, devices, {.title = "gathered", .element_bytes = 1024});
  CHECK(svg.find("font-size=\"15\">gathered</text>") != std::string::npos);
  // 512 elements of 1 KiB: seven eighths gathered, all sent, seven eighths scattered.
  CHECK(svg.find(">phase 1: 7 messages, 448 KiB<") != std::string::npos);
  CHECK(svg.find(">phase 2: 1 message, 512 KiB<") != std::string::npos);
  CHECK(svg.find(">phase 3: 7 messages, 448 KiB<") != std::string::npos);
  CHECK(count(svg, "<title>a, node 1, device 3 to a, node 0, device 0: 64.0 KiB</title></path>") == 1);
  CHECK(count(svg, "<title>a, node 0, device 0 to R&amp;D &lt;b&gt;, node 0, device 0: 512 KiB</title></path>") == 1);
  for (const char* phase : {"class=\"p0\"", "class=\"p1\"", "class=\"p2\""}) CHECK(count(svg, phase) > 0);
  CHECK(count(svg, "class=\"p3\"") == 0);
  // Without a size of elements, they are counted; without a title, there is none.
  const auto counted = transfer_svg(p, c, devices);
  CHECK(counted.find("device 0: 512 elements</title></path>") != std::string::npos);
  CHECK(counted.find("font-size=\"15\"") == std::string::npos);
}

TEST_CASE("colours for light and for dark pages; more phases than colours") {
  const auto [c, devices] = two_clusters();
  // Rings of eight: eight phases.
  const auto p = plan_transfer(boundary_layout({.data = 8}, 16, 8, 4), boundary_layout({.tensor = 8}, 16, 8, 4, false),
                               reshard_strategy::scatter_gather);
  REQUIRE(p.phase_count() == 8);
  const auto svg = transfer_svg(p, c, devices);
  CHECK(svg.find(">phases 4 to 8: 40 messages, ") != std::string::npos);
  CHECK(count(svg, "class=\"p4\"") == 0);
  const auto dark = svg.find("@media(prefers-color-scheme:dark){");
  REQUIRE(dark != std::string::npos);
  for (const char* style : {".t{fill:", ".d{fill:", ".p0{", ".p3{", ".k0{", ".k3{"}) {
    CAPTURE(style);
    CHECK(svg.find(style) < dark);
    CHECK(svg.find(style, dark) != std::string::npos);
  }
  CHECK(svg.find("background") == std::string::npos);  // the page's own
}

TEST_CASE("everything lies inside the picture") {
  const auto [c, devices] = two_clusters();
  const auto p = plan_transfer(boundary_layout({.data = 8}, 16, 8, 4), boundary_layout({.tensor = 8}, 16, 8, 4, false),
                               reshard_strategy::scatter_gather);
  const auto svg = transfer_svg(p, c, devices, {.title = "t", .element_bytes = 2});
  const auto value = [&](const std::string& name, std::size_t from) {
    return std::atof(svg.c_str() + svg.find(name + "=\"", from) + name.size() + 2);
  };
  const double width = value("width", 0), height = value("height", 0);
  for (auto at = svg.find("<rect "); at != std::string::npos; at = svg.find("<rect ", at + 1)) {
    CHECK(value(" x", at) >= 0);
    CHECK(value(" y", at) >= 0);
    CHECK(value(" x", at) + value(" width", at) <= width);
    CHECK(value(" y", at) + value(" height", at) <= height);
  }
}
