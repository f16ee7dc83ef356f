// SPDX-License-Identifier: Apache-2.0
#include <hetsched/io/trace/kineto_operators.hpp>

#include <string>

#include <doctest/doctest.h>

#include <hetsched/io/json_reader.hpp>
#include <hetsched/io/operators_csv.hpp>

using namespace hetsched;

namespace {

std::string op(int id, const std::string& name, const std::string& dims, const std::string& types) {
  return R"({"ph": "X", "cat": "cpu_op", "name": ")" + name +
         R"(", "pid": 1, "tid": 1, "ts": 1, "dur": 900, "args": {"External id": )" + std::to_string(id) +
         R"(, "Record function id": 0, "Input Dims": )" + dims + R"(, "Input type": )" + types + "}}";
}

std::string kernel(int id, double us) {
  return R"({"ph": "X", "cat": "kernel", "name": "sm80_xmma_gemm", "pid": 0, "tid": 7, "ts": 5, "dur": )" + std::to_string(us) +
         R"(, "args": {"External id": )" + std::to_string(id) + R"(, "device": 0, "stream": 7, "correlation": 9}})";
}

std::string trace(std::initializer_list<std::string> events) {
  std::string text;
  for (const auto& e : events) text += (text.empty() ? "" : ",\n") + e;
  return R"({"schemaVersion": 1, "record_shapes": 1, "traceEvents": [)" + text + "]}";
}

}  // namespace

TEST_CASE("operators of torch.profiler by their kernels' times: the median of equal ones, pieces added up") {
  const std::string half = R"(["c10::Half", "c10::Half"])", brain = R"(["c10::BFloat16", "c10::BFloat16", "c10::BFloat16"])";
  const auto csv = kineto_operators_csv(
      trace({op(1, "aten::mm", "[[128, 512], [512, 768]]", half),
             kernel(1, 40),
             op(2, "aten::mm", "[[128, 512], [512, 768]]", half),
             kernel(2, 9),
             kernel(2, 1),  // a split reduction
             op(3, "aten::mm", "[[128, 512], [512, 768]]", half),
             kernel(3, 12),
             op(4, "aten::addmm", "[[768], [64, 32], [32, 768], [], []]", brain),
             kernel(4, 5),
             op(5, "aten::bmm", "[[8, 16, 4], [8, 4, 16]]", half),
             kernel(5, 2.5),
             op(6, "aten::_softmax", "[[8, 16, 24], [], []]", R"(["float", "Scalar", "Scalar"])"),
             kernel(6, 3),
             op(7, "aten::native_layer_norm", "[[2, 64, 96], [], [96], [96], []]", half),
             kernel(7, 4),
             op(8, "aten::linear", "[[128, 512], [768, 512]]", half),  // has no kernel of its own
             op(9, "aten::mm", "[[128, 512], [512, 999]]", half),      // nor has this
             op(10, "aten::mm", "[[0, 512], [512, 768]]", half),
             kernel(10, 1),  // of no rows
             op(11, "aten::mm", "[[4, 4], [4, 4]]", R"(["double", "double"])"),
             kernel(11, 1),
             kernel(99, 7),  // no format; nobody's
             R"({"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}})",
             R"({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1, "args": {"External id": 12}})"}),
      "trace.json");
  CHECK(csv ==
        "op,batch,m,n,k,dtype,measured_ms\n"
        "gemm,1,128,768,512,fp16,0.012000\n"
        "gemm,1,64,768,32,bf16,0.005000\n"
        "bmm,8,16,16,4,fp16,0.002500\n"
        "softmax,1,128,24,,fp32,0.003000\n"
        "layernorm,1,128,96,,fp16,0.004000\n");
  CHECK(parse_operators(csv, "csv").operators.size() == 5);
}

TEST_CASE("traces without sizes or kernels are refused") {
  for (const auto& text :
       {trace({}), trace({op(1, "aten::mm", "[[4, 4], [4, 4]]", R"(["float", "float"])")}), trace({kernel(1, 4)})})
    CHECK_THROWS_WITH_AS((void)kineto_operators_csv(text, "t.json"),
                         doctest::Contains("t.json: /traceEvents: no product, softmax or layer norm has sizes and kernels"),
                         file_error);
  CHECK_THROWS_WITH_AS((void)kineto_operators_csv(R"({"format": "hetsched/plan"})", "p.json"), doctest::Contains("/traceEvents"),
                       file_error);
}
