// SPDX-License-Identifier: Apache-2.0
#include <hetsched/core/sha256.hpp>

#include <doctest/doctest.h>

#include <cstddef>
#include <span>
#include <string>

using namespace hetsched;

namespace {

std::string text_of(const sha256_digest& d) {
  std::string text;
  for (const auto b : d)
    for (const unsigned half : {std::to_integer<unsigned>(b) >> 4, std::to_integer<unsigned>(b) & 15u})
      text += "0123456789abcdef"[half];
  return text;
}

std::string hashed(const std::string& text) {
  sha256 whole, pieces;
  whole.add(text);
  for (const char c : text) pieces.add(std::string(1, c));
  const auto found = text_of(whole.digest());
  CHECK(text_of(pieces.digest()) == found);
  return found;
}

std::string keyed(const std::string& key, const std::string& message) {
  return text_of(keyed_digest(std::as_bytes(std::span(key)), std::as_bytes(std::span(message))));
}

}  // namespace

TEST_CASE("sha256: the examples of FIPS 180-4 and a million letters") {
  CHECK(hashed("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hashed("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hashed("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  sha256 many;
  for (int i = 0; i < 1000; ++i) many.add(std::string(1000, 'a'));
  CHECK(text_of(many.digest()) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("sha256: keyed digests of RFC 4231, cases 1 to 4, 6 and 7") {
  CHECK(keyed(std::string(20, '\x0b'), "Hi There") == "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(keyed("Jefe", "what do ya want for nothing?") == "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(keyed(std::string(20, '\xaa'), std::string(50, '\xdd')) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::string counted;
  for (char c = 1; c <= 25; ++c) counted += c;
  CHECK(keyed(counted, std::string(50, '\xcd')) == "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK(keyed(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First") ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(keyed(std::string(131, '\xaa'),
              "This is a test using a larger than block-size key and a larger than block-size data. The key needs to be hashed "
              "before being used by the HMAC algorithm.") == "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST_CASE("sha256: digests that differ in any bit are not the same") {
  const sha256_digest a = keyed_digest({}, {});
  CHECK(same_digest(a, a));
  for (std::size_t bit = 0; bit < 256; ++bit) {
    auto b = a;
    b[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    CHECK(!same_digest(a, b));
  }
}
