// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <string>

#include <hetsched/cluster/catalogue.hpp>
#include <hetsched/cluster/link_kind.hpp>

using namespace hetsched;

TEST_CASE("every kind of link has a name, by which it is found") {
  for (int k = 0; k < link_kind_count; ++k) {
    const auto kind = static_cast<link_kind>(k);
    CAPTURE(std::string(name_of(kind)));
    CHECK(find_link_kind(name_of(kind)) == kind);
  }
  CHECK(link_kind_count == static_cast<int>(link_kind::pcie) + 1);
  CHECK_FALSE(find_link_kind("infiniband"));
}

TEST_CASE("a datasheet's bandwidth tells the kind of link, any other is a measurement") {
  const auto kind = [](const char* device, double gbit) { return usual_link_kind(catalogue_device(device), gbit_per_s(gbit)); };
  CHECK(kind("V100-SXM2-32GB", 1200) == link_kind::nvlink);
  CHECK(kind("A100-SXM4-80GB", 2400) == link_kind::nvlink);
  CHECK(kind("H100-SXM5-80GB", 3600) == link_kind::nvlink_sharp);
  CHECK(kind("B200-SXM", 7200) == link_kind::nvlink_sharp);
  CHECK(kind("H100-NVL-94GB", 2400) == link_kind::nvlink);
  CHECK(kind("A100-PCIe-80GB", 252) == link_kind::pcie_p2p);
  CHECK(kind("A100-PCIe-80GB", 256) == link_kind::pcie_p2p);
  CHECK(kind("L40S", 256) == link_kind::pcie);
  CHECK(kind("RTX-PRO-6000", 512) == link_kind::pcie);
  CHECK(kind("A100-SXM4-80GB", 1900) == link_kind::measured);  // nobody's datasheet
  CHECK(kind("A100-SXM4-80GB", 3600) == link_kind::measured);  // another generation's
  CHECK(kind("L40S", 2400) == link_kind::measured);
  CHECK(usual_link_kind({.name = "mine"}, gbit_per_s(256)) == link_kind::measured);  // who knows what that device can do
}
