// SPDX-License-Identifier: Apache-2.0
// Imported models against closed forms and published numbers.
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/io/json/model_json.hpp>
#include <hetsched/io/operators_csv.hpp>
#include <hetsched/model/graph_layers.hpp>

#include "../commands/workplace.hpp"
#include "models.hpp"

using namespace hetsched;
using namespace hetsched::test;

namespace {

double forward_flops(const layer_chain& chain) {
  double sum = 0;
  for (const auto& l : chain.layers) sum += l.forward_flops;
  return sum;
}

}  // namespace

TEST_CASE("onnx: a perceptron whose weights are not there") {
  const auto found = mlp().import();
  CHECK(found.warnings.empty());
  const auto chain = make_layers(found.graph, {.layers = 1, .tolerance = 10}).chain;
  REQUIRE(chain.size() == 1);
  const auto& l = chain.layers[0];
  CHECK(l.parameters == 784 * 512 + 512 + 512 * 10 + 10);
  CHECK(l.forward_flops == 2.0 * (784 * 512 + 512 * 10));
  CHECK(l.backward_flops == 2.0 * (784 * 512 + 2 * 512 * 10));  // nobody wants the image's gradient
  CHECK(l.activation_bytes == 2 * (784 + 512));
  CHECK(cut_bytes(found.graph)[2] == 2 * 512);

  CHECK(found.graph.at(1).kept == std::vector{1});  // what is positive

  net large;  // above 2 GB
  large("MatMul", {large.input("x", {"N", 60'000}), large.weight({60'000, 60'000})});
  CHECK(parameter_count(make_layers(large.import().graph).chain) == 3'600'000'000);
}

TEST_CASE("onnx: a transformer with open sizes, computed shapes and tied embeddings") {
  const auto model = gpt();
  CHECK(model.complaint() == "input ids: the size of axis 1 (seq) is open; say it with --sample ids=1,...");
  CHECK(model.complaint({.samples = {{"idz", {1, 8}}}}) == "the model has no input idz");
  CHECK(model.complaint({.samples = {{"ids", {8}}}}) == "input ids has 2 axes, not 1");
  const auto found = model.import({.samples = {{"ids", {1, sequence}}}});
  CHECK(found.warnings.empty());

  const auto layers = make_layers(found.graph, {.layers = 0});
  const auto& chain = layers.chain;
  constexpr auto h = hidden, s = sequence;
  constexpr std::int64_t block = 12 * h * h + 13 * h, all = words * h + s * h + blocks * block + 2 * h;
  CHECK(parameter_count(chain) == all);
  const double products = static_cast<double>(blocks * (2 * s * 12 * h * h + 4 * s * s * h) + 2 * s * words * h);
  CHECK(forward_flops(chain) == products);
  CHECK(training_flops(chain) == 3 * products);
  REQUIRE(layers.modules.size() == 1);
  CHECK(layers.modules[0].starts.size() == blocks);
  CHECK(chain.layers[2].name == "block1");
  CHECK(chain.layers[2].boundary_bytes == 2 * s * h);
  CHECK(chain.layers.back().shared_parameters == words * h);

  CHECK(chain.layers[2].activation_bytes == 2 * (16 * s * h + heads * s * s));
  int launched = 0;
  for (const auto& node : found.graph.nodes) {
    launched += node.launches;
    for (const int j : node.kept) CHECK(found.graph.at(j).launches);  // memory, not a view of it
  }
  CHECK(launched == 2 + blocks * 17 + 2);

  // What is written reads back as it was, with the copies of shared weights.
  const auto read = parse_model(to_model_json(chain), "model.json").chain;
  CHECK(forward_flops(read) == products);
  CHECK(parameter_count(read) == all);
  CHECK(read.layers[3].activation_bytes == chain.layers[3].activation_bytes);
  const auto rows = parse_operators(onnx_import::operators_csv(found.graph), "operators.csv");
  double flops_of_rows = 0, bytes_of_rows = 0, bytes = 0;
  for (const auto& op : rows.operators) flops_of_rows += flops(op), bytes_of_rows += op.traffic_bytes;
  for (const auto& node : found.graph.nodes) bytes += node.launches ? node.op.traffic_bytes : 0;
  CHECK(flops_of_rows == products);
  CHECK(bytes_of_rows == doctest::Approx(bytes).epsilon(0.01));
}

TEST_CASE("onnx: weights behind what computes them from constants count as those that the file holds") {
  constexpr int wide = 64;
  const auto count = [](const net& n, bool warns = false) {
    const auto found = n.import();
    CAPTURE(found.warnings.size());
    CHECK(found.warnings.size() == (warns ? 1 : 0));
    return parameter_count(make_layers(found.graph).chain);
  };
  const auto of = [&](auto weight) {
    net n;
    n("Add", {n("MatMul", {n.input("x", {"N", 8, wide}), weight(n)}), n.scalar(1)});
    return count(n);
  };
  const auto int8 = [](net& n) { return n.quantised({wide, wide}); };
  CHECK(of([&](net& n) { return n.weight({wide, wide}); }) == wide * wide);
  CHECK(of([&](net& n) { return n("DequantizeLinear", {int8(n), n.scalar(1)}); }) == wide * wide);
  CHECK(of([&](net& n) { return n("DequantizeLinear", {int8(n), n.weight({wide})}); }) == wide * wide);  // a scale per column
  CHECK(of([&](net& n) { return n("Transpose", {n("DequantizeLinear", {int8(n), n.scalar(1)})}); }) == wide * wide);
  CHECK(of([&](net& n) { return n("DequantizeLinear", {n("Transpose", {int8(n)}), n.scalar(1)}); }) == wide * wide);
  CHECK(of([&](net& n) { return n("Mul", {n("Cast", {int8(n)}, {{"to", {1}}}), n.scalar(1)}); }) == wide * wide);
  CHECK(of([&](net& n) { return n("ConstantOfShape", {n.numbers({wide, wide})}); }) == wide * wide);
  CHECK(of([&](net& n) {
          return n("DequantizeLinear", {n("QuantizeLinear", {n.weight({wide, wide}), n.scalar(1)}), n.scalar(1)});
        }) == wide * wide);

  net own;  // products of quantised operands, a bias of theirs, and a table
  const auto scale = own.scalar(1);
  const auto ids = own.input("ids", {"N", 8}, onnx::TensorProto::INT64);
  const auto table = own("DequantizeLinear", {own.quantised({100, wide}), scale});
  const auto x = own("Gather", {table, ids});
  const auto bytes = own("QuantizeLinear", {x, scale, own.quantised({})});
  own("MatMulInteger", {bytes, own.quantised({wide, 32})});
  own("QLinearMatMul",
      {bytes, scale, own.quantised({}), own.quantised({wide, 16}), scale, own.quantised({}), scale, own.quantised({})});
  own("Add", {x, own("DequantizeLinear", {own.quantised({wide}), scale})});
  own("MatMul", {x, own("Transpose", {table}, {{"perm", {1, 0}}})});  // tied
  CHECK(count(own) == 100 * wide + wide * 32 + wide * 16 + wide);
  CHECK(make_layers(own.import().graph, {.layers = 1, .tolerance = 10}).chain.layers[0].forward_flops ==
        doctest::Approx(2.0 * 8 * wide * (32 + 16 + 100)));

  net packed;  // ONNX Runtime's 4 bits
  packed("MatMulNBits", {packed.input("x", {"N", 8, wide}), packed.quantised({32, 2, 16}), packed.weight({64})},
         {{"K", {wide}}, {"N", {32}}});
  packed.last_node().set_domain("com.microsoft");
  CHECK(count(packed) == wide * 32);
  CHECK(make_layers(packed.import().graph).chain.layers[0].forward_flops == 2.0 * 8 * wide * 32);

  net mask;  // what no product reads is no weight
  const auto y = mask("MatMul", {mask.input("x", {"N", wide, wide}), mask.weight({wide, wide})});
  mask("Add", {y, mask("Trilu", {mask("ConstantOfShape", {mask.numbers({wide, wide})})})});
  CHECK(count(mask) == wide * wide);

  net idle;
  idle("Relu", {idle.input("x", {"N", 8})});
  (void)idle.quantised({1000});
  CHECK(count(idle, true) == 0);
  CHECK(idle.import().warnings[0] == "of 1000 numbers that the file holds, 1000 are parameters of no operator");
}

TEST_CASE("onnx: ResNet-50") {
  const auto found = resnet50().import();
  CHECK(found.warnings.empty());
  const auto chain = make_layers(found.graph).chain;
  CHECK(parameter_count(chain) == 25'557'032);                                  // as torchvision publishes
  CHECK(forward_flops(chain) / 2 == doctest::Approx(4.089e9).epsilon(0.0002));  // multiplications
}

TEST_CASE("onnx: products, and sizes that are computed") {
  constexpr auto half = number_format::fp16;
  net n;
  const auto x = n.input("x", {"N", 3, 7, 5});
  n("MatMul", {x, n.weight({5, 2})});
  n("MatMul", {n.weight({2, 7}), x});  // transposed: weights are the right operand
  n("MatMul", {x, n.weight({3, 5, 2})});
  n("MatMul", {x, n("Transpose", {x}, {{"perm", {0, 1, 3, 2}}})});
  n("Conv", {x, n.weight({6, 1, 3, 3})}, {{"group", {3}}});
  n("Einsum", {x, n.weight({5, 2, 4})});
  n.text_attribute("equation", "bcij,jkl->bcikl");
  // Pads of the last axes first, from the back: turned round as PyTorch does.
  const auto pairs =
      n("Reshape", {n("Concat", {n.numbers({1, 2, 3, 4}), n.numbers({0, 0, 0, 0})}, {{"axis", {0}}}), n.numbers({-1, 2})});
  const auto turned = n("Slice", {pairs, n.numbers({-1}), n.numbers({INT64_MIN + 1}), n.numbers({0}), n.numbers({-1})});
  n("Pad", {x, n("Reshape", {n("Transpose", {turned}, {{"perm", {1, 0}}}), n.numbers({-1})})});
  const auto graph = n.import().graph;
  REQUIRE(graph.size() == 7);
  auto grouped = batched_gemm(3, 15, 2, 9, half);
  grouped.traffic_bytes = 2 * (105 + 54 + 90);  // windows overlap
  CHECK(graph.at(0).op == gemm(21, 2, 5, half));
  CHECK(graph.at(1).op == gemm(15, 2, 7, half));
  CHECK(graph.at(2).op == batched_gemm(3, 7, 2, 5, half));
  CHECK(graph.at(3).op.batch == 3);
  CHECK(graph.at(3).op.traffic_bytes == 2 * (105 + 105 + 147));
  CHECK(graph.at(3).saved_bytes == 0);  // nobody wants a gradient
  CHECK(graph.at(4).op == grouped);
  CHECK(graph.at(5).op == gemm(21, 8, 5, half));
  CHECK(graph.at(6).output_bytes == 2 * 3 * (3 + 7 + 4) * (1 + 5 + 2));
}

TEST_CASE("onnx: operators that are not known, and what cannot be imported") {
  net n;
  const auto x = n.input("x", {4, "width"}), other = n.input("other", {"N", "width"});
  n("Add", {n("Hypot", {x, other}), n("Hypot", {x, other})});
  const auto found = n.import({.samples = {{"other", {1, 5}}}});
  REQUIRE(found.warnings.size() == 2);
  CHECK(found.warnings[0] == "input x is fixed to 4 along its first axis: amounts are for all of them together");
  CHECK(found.warnings[1] == "operator Hypot is not known: counted as elementwise on its results (2 nodes)");
  CHECK(found.graph.at(0).output_bytes == 2 * 4 * 5);  // of the first input, whose width is bound by the other's
  CHECK(found.graph.at(0).op.traffic_bytes == 2 * (4 * 5 + 5 + 4 * 5));
  CHECK(n.complaint({.samples = {{"other", {1, 5}}, {"x", {4, 6}}}}) == "axis width of input x cannot be both 5 and 6");

  n.model.mutable_graph()->mutable_node(0)->set_name("//\xff,\n");
  CHECK(n.import({.samples = {{"other", {1, 5}}}}).graph.at(0).name == "_,_");

  auto branches = mlp();
  branches.scope = "late/";
  branches("If", {"x"});
  CHECK(branches.complaint().starts_with("node /late/If4 (If): control flow cannot be imported"));
  auto wrong = mlp();
  wrong("MatMul", {"x", wrong.weight({5, 5})});
  CHECK(wrong.complaint().starts_with("node /MatMul4 (MatMul): "));
  auto dangling = mlp();
  dangling("Relu", {"nowhere"});
  CHECK(dangling.complaint() == "node /Relu4 (Relu): nothing before it makes nowhere");
}

TEST_CASE("onnx: the command") {
  const workplace w;
  const auto bytes = gpt().bytes();
  w.put("gpt.onnx", bytes);
  w.put("cut.onnx", bytes.substr(0, bytes.size() / 2));
  auto run = w.run("hetsched-import-onnx cut.onnx --out cut.json --sample ids=1,48");
  CHECK(run.status == 2);
  CHECK(run.errors.find("cut.onnx: not an ONNX model, or cut off") != std::string::npos);
  CHECK(w.run("hetsched-import-onnx gpt.onnx --out gpt.json --sample ids=1,0").status == 2);
  CHECK(w.run("hetsched-import-onnx gpt.onnx --out none/gpt.json --sample ids=1,48").status == 2);
  CHECK(w.files() == std::set<std::string>{"cut.onnx", "gpt.onnx"});
  run = w.run("hetsched-import-onnx gpt.onnx --out gpt.json --sample ids=1,48 --layers 8 --operators operators.csv");
  CHECK(run.status == 0);
  CHECK(run.errors.empty());
  CHECK(run.output.find("367104 parameters") != std::string::npos);
  CHECK(read_model(w.path("gpt.json")).chain.size() >= 8);
  CHECK(!read_operators(w.path("operators.csv")).operators.empty());
}
