// SPDX-License-Identifier: Apache-2.0
#include <hetsched/core/printable.hpp>

#include <doctest/doctest.h>

#include <string>

using hetsched::printable;

TEST_CASE("printable: control characters become visible, all else stays") {
  CHECK(printable("rank 1 failed: \"why\" \\ 100 %") == "rank 1 failed: \"why\" \\ 100 %");
  CHECK(printable("a\x1b[2Jb\nc\r\t") == "a\\x1b[2Jb\\x0ac\\x0d\\x09");
  CHECK(printable("a\n\rb\n", true) == "a\n\\x0db\n");
  CHECK(printable(std::string("\0\x7f", 2)) == "\\x00\\x7f");
  CHECK(printable("f\xc3\xbcr \xe6\x97\xa5") == "f\xc3\xbcr \xe6\x97\xa5");
  CHECK(printable("\xc2\x9b"
                  "31m \xc2\xa0") == "\\x9b31m \xc2\xa0");
  CHECK(printable("\xc2") == "\xc2");
}
