// SPDX-License-Identifier: Apache-2.0
#include "../sanitizer_share.hpp"
#include "documents.hpp"

using namespace documents;

TEST_CASE("every document of the formats is read, and no prefix of one is") {
  for (const auto& k : kinds()) {
    CAPTURE(k.name);
    CHECK_NOTHROW(k.parse(k.text));
    for (std::size_t length = 0; length < k.text.size(); length += std::size_t{hetsched::test::sanitizer_share}) {
      CAPTURE(length);
      CHECK_THROWS_AS(k.parse(std::string_view(k.text).substr(0, length)), hetsched::file_error);
    }
  }
}

TEST_CASE("what is wrong with every format alike") {
  const std::string deep(100'000, '['), large(hetsched::max_json_bytes + 1, ' ');
  for (const auto& k : kinds()) {
    const std::string format = std::string("\"hetsched/") + k.name + '"', version = "\"version\": " + std::to_string(k.version);
    refuses(k, with(k.text, format, "\"hetsched/other\""), "/format", "expected " + format);
    refuses(k, with(k.text, format, "7"), "/format", "found 7, expected a string");
    refuses(k, with(k.text, version, "\"version\": 3"), "/version",
            k.latest == 1 ? "found 3, expected 1" : "found 3, expected 1 to 2");
    refuses(k, with(k.text, version, version + ", \"version\": 1"), "/version", "twice");
    refuses(k, with(k.text, version, version + ", \"verson\": 1"), "/verson", "did you mean \"version\"");
    refuses(k, with(k.text, version, version + ", \"a/b~c\": 1"), "/a~1b~0c", "unknown key");
    refuses(k, with(k.text, version + ",", ""), "/version", "missing");
    refuses(k, with(k.text, "\"format\": " + format + ",", ""), "/format", "missing");
    refuses(k, with(k.text, version, "\"version\": NaN"), "/version", "syntax error");
    refuses(k, with(k.text, version, "\"version\": Infinity"), "/version", "syntax error");
    refuses(k, with(k.text, version, "\"version\": 1e999"), "/version", "number overflow");
    refuses(k, with(k.text, version, "\"version\": \"\xff\""), "/version", "UTF-8");
    refuses(k, k.text + "x", "", "");
    refuses(k, "[]", "", "found an array of 0, expected an object");
    refuses(k, "null", "", "found null, expected an object");
    refuses(k, "", "", "syntax error");
    CHECK_THROWS_AS(k.parse(deep), hetsched::file_error);
    CHECK_THROWS_AS(k.parse(large), hetsched::file_error);
  }
}

TEST_CASE("numbers out of range, of a wrong type, negative or huge, at any place of any format") {
  struct row {
    const char* kind;
    const char* piece;
    const char* replacement;
    const char* pointer;
    const char* part;
  };
  const row rows[] = {
      {"cluster", "\"nodes\": 4", "\"nodes\": 0", "/subclusters/0/nodes", "found 0, expected a whole number in [1, "},
      {"cluster", "\"nodes\": 4", "\"nodes\": -4", "/subclusters/0/nodes", "found -4"},
      {"cluster", "\"nodes\": 4", "\"nodes\": 1.5", "/subclusters/0/nodes", "found 1.5"},
      {"cluster", "\"nodes\": 4", "\"nodes\": \"4\"", "/subclusters/0/nodes", "found \"4\""},
      {"cluster", "\"nodes\": 4", "\"nodes\": 99999999999999999999", "/subclusters/0/nodes", "expected a whole number"},
      {"cluster", "\"nodes\": 4", "\"nodes\": 18446744073709551615", "/subclusters/0/nodes", "expected a whole number"},
      {"cluster", "\"nodes\": 4", "\"nodes\": 1000000", "/subclusters/0", "devices in all"},
      {"cluster", "\"nodes\": 4", "\"node\": 4", "/subclusters/0/node", "did you mean \"nodes\""},
      {"cluster", "\"nodes\": 4, ", "", "/subclusters/0/nodes", "missing"},
      {"cluster", "\"gbit_per_s\": 5,", "\"gbit_per_s\": 0,", "/links/0/gbit_per_s", "above 0"},
      {"cluster", "\"latency_us\": 100", "\"latency_us\": -1", "/links/0/latency_us", "found -1"},
      {"cluster", "[\"v100e\", \"a100\"]", "[\"v100e\", \"b100\"]", "/links/0/between/1", "found \"b100\""},
      {"cluster", "[\"v100e\", \"a100\"]", "[\"a100\", \"a100\"]", "/links/0/between", "two different"},
      {"cluster", "[\"v100e\", \"a100\"]", "[\"a100\"]", "/links/0/between", "found an array of 1"},
      {"cluster", "\"name\": \"a100\"", "\"name\": \"v100e\"", "/subclusters/1/name", "no other subcluster"},
      {"cluster", "\"name\": \"a100\"", "\"name\": \"\"", "/subclusters/1/name", "a name"},
      {"cluster", "\"A100-SXM4-40GB\"", "\"A100-SXM5-40GB\"", "/subclusters/1/device", "did you mean \"A100-SXM4-40GB\""},
      {"cluster", "\"A100-SXM4-40GB\"", "\"h100\"", "/subclusters/1/device",
       "did you mean \"H100-PCIe-80GB\" or \"H100-NVL-94GB\" or \"H100-SXM5-80GB\"?"},
      {"cluster", "\"A100-SXM4-40GB\"", "\"NVIDIA GeForce RTX 4060 Ti\"", "/subclusters/1/device",
       "did you mean \"RTX4060Ti-8GB\" or \"RTX4060Ti-16GB\"?"},
      {"cluster", "\"A100-SXM4-40GB\"", "\"Tesla V100S-PCIE-32GB\"", "/subclusters/1/device", "did you mean \"V100-PCIe-32GB\"?"},
      {"cluster", "\"A100-SXM4-40GB\"", "\"Voodoo 2\"", "/subclusters/1/device",
       "there is no device \"Voodoo 2\"; did you mean \""},
      {"cluster", "\"memory_gib\": 32", "\"memory_gib\": 0", "/devices/MyGPU/memory_gib", "above 0"},
      {"cluster", "\"memory_gib\": 32, ", "", "/devices/MyGPU/memory_gib", "missing"},
      {"cluster", "\"fp16\": 125.0", "\"fp4\": 125.0", "/devices/MyGPU/peak_tflops/fp4", "unknown key"},
      {"model", "\"layers\": 2", "\"layers\": 0", "/transformer/layers", "found 0"},
      {"model", "\"layers\": 2", "\"layers\": 2147483648", "/transformer/layers", "found 2147483648"},
      {"model", "\"hidden\": 64", "\"hidden\": 66", "/transformer/hidden", "a multiple of the 4 heads"},
      {"model", "\"kv_heads\": 2", "\"kv_heads\": 3", "/transformer/kv_heads", "a divisor of the 4 heads"},
      {"model", "\"bf16\"", "\"fp15\"", "/transformer/dtype", "found \"fp15\""},
      {"model", "\"hidden\": 64", "\"hiden\": 64", "/transformer/hiden", "did you mean \"hidden\""},
      {"model", "\"experts_per_token\": 2", "\"experts_per_token\": 5", "/transformer/experts_per_token",
       "at most the 4 experts"},
      {"model", "\"transformer\": {", "\"layers\": [], \"transformer\": {", "", "either"},
      {"profile 1", "[0.1, 0.25]", "[0.1]", "/costs/0/forward_s", "found 1 entries, expected 2 (one per layer)"},
      {"profile 1", "[0.1, 0.25]", "[0.1, -0.25]", "/costs/0/forward_s/1", "found -0.25"},
      {"profile 1", "[0.1, 0.25]", "[0.1, 1e300]", "/costs/0/forward_s/1", "found 1e+300"},
      {"profile 1", "[0.1, 0.25]", "[0.1, null]", "/costs/0/forward_s/1", "found null"},
      {"profile 1", "[0.1, 0.25]", "[0.1, NaN]", "/costs/0/forward_s/1", "syntax error"},
      {"profile 1", "[1000, 2000]", "[1000, 0.5]", "/costs/0/weight_bytes/1", "found 0.5"},
      {"profile 1", "\"boundary_bytes\": 0", "\"boundary_bytes\": 1e300", "/layers/1/boundary_bytes", "found 1e+300"},
      {"profile 1", "\"tensor\": 4", "\"tensor\": 2", "/costs/1/degrees", "must be the 8 devices"},
      {"profile 1", "\"device\": \"T4\"", "\"device\": \"T4\", \"subcluster\": \"v100e\"", "/costs/1", "either"},
      {"profile", "[0.1, 0.25]", "[0.1]", "/costs/0/forward_s", "found 1 entries, expected 2 (one per layer)"},
      {"profile", "[0.1, 0.25]", "[0.1, -0.25]", "/costs/0/forward_s/1", "found -0.25"},
      {"profile", "[0.2, 0.4]", "[0.2, 1e300]", "/costs/0/backward_s/1", "found 1e+300"},
      {"profile", "[1000, 2000]", "[1000, 0.5]", "/costs/0/weight_bytes/1", "found 0.5"},
      {"profile", "[10, 20]", "[10, -1]", "/costs/0/activation_bytes/1", "found -1"},
      {"profile", "[200, 400]", "[200, 2001]", "/costs/0/gradient_bytes/1",
       "found 2001, expected at most the 2000 of weight_bytes"},
      {"profile", "[200, 400]", "[200]", "/costs/0/gradient_bytes", "found 1 entries, expected 2 (one per layer)"},
      {"profile", "[0.01, 0.02]", "[0.01, null]", "/costs/0/update_s/1", "found null"},
      {"profile", "\"boundary_bytes_per_sample\": 0", "\"boundary_bytes_per_sample\": -1", "/layers/1/boundary_bytes_per_sample",
       "found -1"},
      {"profile", "\"boundary_bytes_per_sample\": 0", "\"boundary_bytes\": 0", "/layers/1/boundary_bytes", "unknown key"},
      {"profile", "\"nodes\": 2", "\"nodes\": 3", "/costs/0/nodes", "found 3, expected a divisor of the 8 devices"},
      {"profile", "\"nodes\": 2", "\"devices\": 2", "/costs/0/devices", "unknown key"},
      {"profile", "\"tensor\": 4", "\"tensor\": 0", "/costs/0/tensor", "found 0"},
      {"profile", "\"tensor\": 4", "\"tensor\": 1000000", "/costs/0", "expected at most 1000000"},
      {"profile", "\"context\": 2", "\"context\": 1.5", "/costs/0/context", "found 1.5"},
      {"profile", "\"microbatch_size\": 4", "\"microbatch_size\": 0", "/costs/0/microbatch_size", "found 0"},
      {"profile", "\"microbatch_size\": 4, ", "", "/costs/0/microbatch_size", "missing"},
      {"profile", "\"microbatch_size\": 8", "\"microbatch_size\": 1", "/costs/2",
       "the same replica and microbatch_size as /costs/1"},
      {"profile", "\"activation_bytes\": [80, 160]", "\"activation_bytes\": [80, 160], \"gradient_bytes\": [1, 1]", "/costs/2",
       "has gradient_bytes, expected it in all rows of a replica or in none, but /costs/1 lacks it"},
      {"profile", "\"activation_bytes\": [10, 20] }", "\"activation_bytes\": [10, 20], \"update_s\": [1, 1] }", "/costs/2",
       "lacks update_s, expected it in all rows of a replica or in none, but /costs/1 has it"},
      {"profile", "\"device\": \"T4\"", "\"device\": \"T4\", \"subcluster\": \"v100e\"", "/costs/1", "either"},
      {"profile", "\"subcluster\": \"v100e\", ", "", "/costs/0", "either"},
      {"profile", "\"version\": 2", "\"version\": 1", "/layers/0/boundary_bytes_per_sample", "unknown key"},
      {"plan 1", "[0, 39]", "[0, 38]", "/pipelines/0/stages/1/layers", "starts at layer 40, expected 39"},
      {"plan 1", "[40, 40]", "[40, 39]", "/pipelines/0/stages/1/layers/1", "found 39"},
      {"plan 1", "[0, 39]", "[0]", "/pipelines/0/stages/0/layers", "found an array of 1"},
      {"plan 1", "\"tensor\": 4", "\"tensor\": 3", "/pipelines/0/stages/0/degrees", "must be the 8 devices"},
      {"plan 1", "\"warmup\": 3", "\"warmup\": 0", "/pipelines/0/stages/0/warmup", "found 0"},
      {"plan 1", "\"transfer_s\": 0,", "\"transfer_s\": 0.5,", "/pipelines/0/stages/1/transfer_s", "found 0.5, expected 0"},
      {"plan 1", "\"microbatches\": 64", "\"microbatches\": 65", "/microbatches", "found 65, expected 64"},
      {"plan 1", "\"mfu\": 0.4", "\"mfu\": -0.4", "/predicted/mfu", "found -0.4"},
      {"plan 1", "\"memory_bytes\": 1000", "\"memory_byte\": 1000", "/pipelines/0/stages/0/memory_byte",
       "did you mean \"memory_bytes\""},
      {"plan", "[0, 39], \"devices", "[0, 38], \"devices", "/pipelines/0/stages/1/layers", "starts at layer 40, expected 39"},
      {"plan", "[40, 40]", "[40, 39]", "/pipelines/0/stages/1/layers/1", "found 39"},
      {"plan", "[0, 39], \"devices", "[0], \"devices", "/pipelines/0/stages/0/layers", "found an array of 1"},
      {"plan", "[40, 40]", "[40, 41]", "/pipelines/1/stages", "ends at layer 40, expected 41"},
      {"plan", "\"tensor\": 4", "\"tensor\": 3", "/pipelines/0/stages/0/degrees", "must be the 8 devices"},
      {"plan", "\"data\": 4", "\"data\": 5", "/pipelines/1/stages/0/degrees", "must be the 4 devices"},
      {"plan", "[0.25, 0.75]", "[0.25, 0.5]", "/pipelines/0/stages/0/shares/data", "must add up to 1"},
      {"plan", "[0.25, 0.75]", "[0.25, 0.5, 0.25]", "/pipelines/0/stages/0/shares/data", "found 3 entries, expected 2"},
      {"plan", "[0.25, 0.75]", "[-0.25, 1.25]", "/pipelines/0/stages/0/shares/data/0", "found -0.25"},
      {"plan", "\"recompute\": \"full\"", "\"recompute\": \"some\"", "/pipelines/0/stages/0/recompute",
       "none, selective or full"},
      {"plan", "\"zero\": 1", "\"zero\": 4", "/pipelines/0/stages/0/zero", "found 4"},
      {"plan", "\"warmup\": 3", "\"warmup\": 0", "/pipelines/0/stages/0/warmup", "found 0"},
      {"plan", "\"weight_backward_s\": 0.05", "\"weight_backward_s\": 0.25", "/pipelines/0/stages/0/weight_backward_s",
       "at most the stage's backward_s"},
      {"plan", "\"optimizer_bytes\": 300", "\"optimizer_bytes\": 501", "/pipelines/0/stages/0/weight_bytes",
       "at least gradient_bytes"},
      {"plan", "\"margin\": 0.25", "\"margin\": -1", "/pipelines/0/stages/0/overheads/margin", "found -1"},
      {"plan", "\"first_device\": 8, ", "", "/pipelines/0/stages/0/devices/1/first_device", "missing"},
      {"plan", "\"first_device\": 8, \"devices_per_node\": 4", "\"first_device\": 8, \"devices_per_node\": 2",
       "/pipelines/0/stages/0/devices", "equally many on each node"},
      {"plan", "\"devices\": 8}", "\"devices\": 0}", "/subclusters/1/devices", "found 0"},
      {"plan", ", \"devices\": 8}", "}", "/subclusters/1", "for all subclusters, or for none"},
      {"plan", "{\"name\": \"a100\"", "{\"name\": \"v100e\"", "/subclusters/1/name", "used twice"},
      {"plan", "\"subcluster\": \"a100\"", "\"subcluster\": \"h100\"", "/pipelines/0/stages/1/devices/0/subcluster",
       "found \"h100\", expected a name of /subclusters"},
      {"plan", "\"forward_s\": 0.05", "\"forward_s\": -0.05", "/pipelines/0/boundaries/0/forward_s", "found -0.05"},
      {"plan", "\"boundaries\": [ ", "\"boundaries\": [ {\"forward_s\": 0, \"backward_s\": 0}, ", "/pipelines/0/boundaries",
       "expected 1"},
      {"plan", "\"name\": \"h1f1b\"", "\"name\": 1", "/pipelines/0/schedule/name", "found 1"},
      {"plan", "0F0,0B0,0F1,0B1", "0F0,0B0", "/pipelines/1/schedule/actions",
       "found 1 ranks and 1 microbatches, expected 1 and 2"},
      {"plan", "0F0,0B0,0F1,0B1", "0F0,0Q0", "/pipelines/1/schedule/actions", "row 1, column 2"},
      {"plan", "0F0,0B0,0F1,0B1\\n", "../actions.csv", "/pipelines/1/schedule/actions", "in the folder of the plan"},
      {"plan", "\"pipelines\": [0, 1]", "\"pipelines\": [0, 2]", "/gradient_sync/0/pipelines/1", "found 2"},
      {"plan", "\"seconds\": 0.5", "\"seconds\": -1", "/gradient_sync/0/seconds", "found -1"},
      {"plan", "\"labels\": 3456", "\"labels\": 0.5", "/evidence/work/labels", "found 0.5"},
      {"plan", "\"complete\": false", "\"complete\": 0", "/evidence/complete", "found 0"},
      {"plan", "\"sequence\": 1024", "\"sequence\": -1", "/setting/sequence", "found -1"},
      {"plan", "\"microbatches\": 2,", "\"microbatches\": 1000000,", "/pipelines/1/schedule/actions", "expected 1 and 1000000"},
      {"plan", "\"mfu\": 0.4", "\"mfu\": -0.4", "/predicted/mfu", "found -0.4"},
      {"plan", "\"memory_bytes\": 1000", "\"memory_byte\": 1000", "/pipelines/0/stages/0/memory_byte",
       "did you mean \"memory_bytes\""},
      {"pipeline", "\"microbatches\": 128", "\"microbatches\": 0", "/microbatches", "found 0"},
      {"pipeline", "[1, 1.5]", "[]", "/forward_s", "at least one stage"},
      {"pipeline", "[2, 2.5]", "[2]", "/backward_s", "expected 2 (one per stage)"},
      {"pipeline", "[0.25]", "[0.25, 1]", "/transfer_s", "expected 1"},
      {"pipeline", "[0.25]", "0.25", "/transfer_s", "found 0.25, expected an array"},
      {"pipeline", "[0.5]", "[-0.5]", "/gradient_transfer_s/0", "found -0.5"},
      {"pipeline", "[0.125]", "[0.3]", "/transfer_occupied_s/0", "at most the boundary's transfer_s"},
      {"pipeline", "[0.125]", "[]", "/transfer_occupied_s", "expected 1"},
      {"pipeline", "[0.375]", "[0.625]", "/gradient_transfer_occupied_s/0", "at most what the gradient takes"},
      {"plan", "\"forward_occupied_s\": 0.025", "\"forward_occupied_s\": 0.0625", "/pipelines/0/boundaries/0/forward_occupied_s",
       "found 0.0625"},
      {"plan", "\"backward_occupied_s\": 0.03125", "\"backward_occupied_s\": -1", "/pipelines/0/boundaries/0/backward_occupied_s",
       "found -1"},
      {"pipeline", "\"weight_backward_s\": [1, 1]", "\"weight_backward_s\": [1, 3]", "/weight_backward_s/1",
       "at most the stage's backward_s"},
      {"pipeline", "[100, 200]", "[100, -1]", "/activation_bytes/1", "found -1"},
  };
  for (const auto& r : rows)
    for (const auto& k : kinds())
      if (k.name + std::string(k.version < k.latest ? " 1" : "") == r.kind)
        refuses(k, with(k.text, r.piece, r.replacement), r.pointer, r.part);
}

TEST_CASE("a repeated key anywhere is refused with its place") {
  for (const auto& k : kinds()) {
    for (std::size_t at = k.text.find("\": "); at != std::string::npos; at = k.text.find("\": ", at + 1)) {
      const auto begin = k.text.rfind('"', at - 1);
      const auto key = k.text.substr(begin, at + 1 - begin);
      CAPTURE(key);
      std::string text = k.text;
      text.insert(begin, key + ": 0, ");
      bool refused = false;
      try {
        k.parse(text);
      } catch (const hetsched::file_error& wrong) {
        refused = std::string(wrong.what()).find("twice") != std::string::npos;
        CHECK(wrong.pointer().ends_with('/' + key.substr(1, key.size() - 2)));
      }
      CHECK(refused);
    }
  }
}

TEST_CASE("an unreadable file is an error with its name") {
  CHECK_THROWS_WITH_AS((void)hetsched::read_cluster("/nowhere/cluster.json"), "/nowhere/cluster.json: cannot be opened",
                       hetsched::file_error);
  CHECK_THROWS_AS((void)hetsched::read_text("/"), hetsched::file_error);
}
