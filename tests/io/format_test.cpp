// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <hetsched/io/format.hpp>

using namespace hetsched;

TEST_CASE("numbers with three significant digits and a unit") {
  CHECK(format_seconds(0) == "0 s");
  CHECK(format_seconds(12.34e-6) == "12.3 us");
  CHECK(format_seconds(0.9999e-3) == "1.00 ms");
  CHECK(format_seconds(0.5) == "500 ms");
  CHECK(format_seconds(1.234) == "1.23 s");
  CHECK(format_seconds(12345) == "12345 s");
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1536) == "1.50 KiB");
  CHECK(format_bytes(16 * gib) == "16.0 GiB");
  CHECK(format_percent(0.1234) == "12.3 %");
}

TEST_CASE("tables are aligned, also with wide characters") {
  CHECK(format_table({"name", ">value"}, {{"a", "1"}, {"bé", "10"}}) == "name  value\na         1\nbé       10\n");
}

TEST_CASE("text is safe in HTML") { CHECK(escape_html("<a href=\"x\">'&\x01") == "&lt;a href=&quot;x&quot;&gt;&#39;&amp;"); }
