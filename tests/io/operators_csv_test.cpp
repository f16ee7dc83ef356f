// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <hetsched/io/operators_csv.hpp>

using namespace hetsched;

namespace {

const std::string heading = "op,batch,m,n,k,dtype\n";

operator_shape only(const std::string& row) {
  const auto file = parse_operators(heading + row + "\n", "rows.csv");
  REQUIRE(file.operators.size() == 1);
  return file.operators.front();
}

// As in a table, whose products are measured again and again.
operator_shape repeated(operator_shape op) {
  op.repeated = true;
  return op;
}

}  // namespace

TEST_CASE("products in fp8: as engines launch them, and the product alone") {
  const auto of = [](const std::string& row) {
    return parse_operators("op,batch,m,n,k,dtype\n" + row + "\n", "rows.csv").operators.at(0);
  };
  CHECK(of("gemm,1,10,20,30,fp8") == repeated(quantised_gemm(10, 20, 30)));
  CHECK(of("linear,1,10,20,30,fp8") == repeated(quantised_gemm(10, 20, 30)));
  CHECK(of("scaled_mm,1,10,20,30,fp8") == repeated(gemm(10, 20, 30, number_format::fp8)));
  CHECK(of("scaled_mm,1,10,20,30,bf16") == of("gemm,1,10,20,30,bf16"));
  CHECK(of("gemm,4,10,20,30,fp8") == repeated(batched_gemm(4, 10, 20, 30, number_format::fp8)));
  CHECK(of("scaled_mm,4,10,20,30,fp8") == of("bmm,4,10,20,30,fp8"));
}

TEST_CASE("operators by name: what they compute and the bytes that they move") {
  struct row {
    std::string text;
    operator_kind kind;
    number_format format;
    std::int64_t batch, m, n, k;
    double bytes, flops;
  };
  const auto pointwise = operator_kind::elementwise;
  const row rows[] = {
      {"gemm,1,10,20,30,fp16", operator_kind::gemm, number_format::fp16, 1, 10, 20, 30, 2.0 * (300 + 600 + 200), 12000},
      {"linear,1,10,20,30,tf32", operator_kind::gemm, number_format::tf32, 1, 10, 20, 30, 4.0 * (300 + 600 + 200), 12000},
      {"gemm,4,10,20,30,fp8", operator_kind::gemm, number_format::fp8, 4, 10, 20, 30, 4.0 * (300 + 600 + 2 * 200), 48000},
      {"linear,1,10,20,30,int8", operator_kind::gemm, number_format::int8, 1, 10, 20, 30, 300 + 600 + 2.0 * 200, 12000},
      {"flash_attention,8,128,256,64,bf16", operator_kind::flash_attention, number_format::bf16, 8, 128, 256, 64,
       2.0 * 8 * 64 * (2 * 128 + 2 * 256), 4.0 * 8 * 128 * 256 * 64},
      {"flash_attention_causal,8,128,256,64,bf16", operator_kind::flash_attention, number_format::bf16, 8, 128, 256, 64,
       2.0 * 8 * 64 * (2 * 128 + 2 * 256), 2.0 * 8 * 128 * 256 * 64},
      // Five products in place of two; q, o, do and k, v are read, dq, dk and dv written.
      {"flash_attention_backward,8,128,256,64,bf16", operator_kind::flash_attention, number_format::bf16, 8, 128, 256, 64,
       2.0 * 8 * 64 * (4 * 128 + 4 * 256), 10.0 * 8 * 128 * 256 * 64},
      {"flash_attention_causal_backward,8,128,256,64,bf16", operator_kind::flash_attention, number_format::bf16, 8, 128, 256, 64,
       2.0 * 8 * 64 * (4 * 128 + 4 * 256), 5.0 * 8 * 128 * 256 * 64},
      {"rotary,3,10,20,0,fp16", operator_kind::rowwise, number_format::fp16, 1, 30, 20, 1, 2.0 * 2 * 600, 0},
      {"cross_entropy,3,10,20,0,fp32", operator_kind::softmax, number_format::fp32, 1, 30, 20, 1, 4.0 * 2 * 600, 0},
      {"moe_routing,3,10,20,0,fp32", operator_kind::softmax, number_format::fp32, 1, 30, 20, 1, 4.0 * 2 * 600, 0},
      {"grouped_gemm,4,10,20,30,fp16", operator_kind::gemm, number_format::fp16, 4, 10, 20, 30, 8.0 * (300 + 600 + 200), 48000},
      {"moe_permute,3,10,20,0,fp16", operator_kind::gather, number_format::fp16, 1, 600, 1, 1, 2.0 * 2 * 600, 0},
      // Weight, gradient and two moments read; all but the gradient written.
      {"AdamW,1,10,60,,fp32", pointwise, number_format::fp32, 1, 600, 1, 1, 4.0 * 7 * 600, 0},
      {"sgd,1,10,60,,fp32", pointwise, number_format::fp32, 1, 600, 1, 1, 4.0 * 3 * 600, 0},
      {"sgd_momentum,1,10,60,,fp32", pointwise, number_format::fp32, 1, 600, 1, 1, 4.0 * 5 * 600, 0},
      {"softmax,3,10,20,0,fp32", operator_kind::softmax, number_format::fp32, 1, 30, 20, 1, 4.0 * 2 * 600, 0},
      {"layernorm,3,10,20,,fp32", operator_kind::norm, number_format::fp32, 1, 30, 20, 1, 4.0 * 2 * 600, 0},
      {"rmsnorm,3,10,20,1,fp32", operator_kind::norm, number_format::fp32, 1, 30, 20, 1, 4.0 * 2 * 600, 0},
      {"embedding,3,10,20,0,fp16", operator_kind::gather, number_format::fp16, 1, 600, 1, 1, 2.0 * 2 * 600, 0},
      {"elementwise_add,3,10,20,0,fp16", pointwise, number_format::fp16, 1, 600, 1, 1, 2.0 * 3 * 600, 0},
      {"gelu,3,10,20,0,fp16", pointwise, number_format::fp16, 1, 600, 1, 1, 2.0 * 2 * 600, 0},
      {"dropout,3,10,20,0,fp16", pointwise, number_format::fp16, 1, 600, 1, 1, (2.0 * 2 + 1) * 600, 0},
  };
  for (const auto& r : rows) {
    CAPTURE(r.text);
    const auto op = only(r.text);
    CHECK(op.kind == r.kind);
    CHECK(op.format == r.format);
    CHECK(op.batch == r.batch);
    CHECK(op.m == r.m);
    CHECK(op.n == r.n);
    CHECK(op.k == r.k);
    CHECK(op.traffic_bytes == r.bytes);
    CHECK(flops(op) == r.flops);
  }
  CHECK(only("bmm,1,10,20,30,fp16").batched);
  CHECK(only("gemm,2,10,20,30,fp16") == only("bmm,2,10,20,30,fp16"));
  CHECK_FALSE(only("gemm,1,10,20,30,fp16").batched);
}

TEST_CASE("names in any case, columns in any order, foreign line ends; rows come back as they were") {
  const std::string text =
      "\xEF\xBB\xBF dtype, Op ,n,k,m,batch,note\r\n"
      "Half, GEMM ,20,30,10, 4 ,second, row\r\n";
  CHECK_THROWS_AS((void)parse_operators(text, "rows.csv"), file_error);  // a comma too many
  auto right = text;
  right.replace(right.find("second, row"), 11, "second: row");
  const auto file = parse_operators(right + "fp32,Layer Norm,20,,10,1,\r\n\r\n  \r\n", "rows.csv");
  CHECK(parse_operators("op,batch,m,n,k,dtype\r\r\nrelu,1,1,2,,fp32\r\r\n", "rows.csv") ==
        parse_operators("op,batch,m,n,k,dtype\nrelu,1,1,2,,fp32\n", "rows.csv"));
  REQUIRE(file.operators.size() == 2);
  CHECK(file.operators[0] == repeated(batched_gemm(4, 10, 20, 30, number_format::fp16)));
  CHECK(file.operators[1] == norm(10, 20, number_format::fp32));
  CHECK(to_csv(file, {0.5, 12.25}) ==
        " dtype, Op ,n,k,m,batch,note,predicted_ms\n"
        "Half, GEMM ,20,30,10, 4 ,second: row,0.500000\n"
        "fp32,Layer Norm,20,,10,1,,12.250000\n");

  const auto measured = parse_operators("op,batch,m,n,k,dtype,Measured_ms\nrelu,1,1,1,1,fp32,0.5\n", "rows.csv");
  CHECK(to_csv(measured, {0.4}) ==
        "op,batch,m,n,k,dtype,Measured_ms,predicted_ms,error_percent\nrelu,1,1,1,1,fp32,0.5,0.400000,-20.00\n");
  CHECK(parse_operators(heading, "rows.csv").operators.empty());
}

TEST_CASE("what is wrong is told with the file, the line, the column and what was found") {
  struct row {
    std::string text;
    std::vector<std::string> parts;
  };
  const std::string good = heading + "gemm,1,1,1,1,fp16\n";
  const row rows[] = {
      {"", {"line 1", "op"}},
      {"op,batch,m,n,k\n", {"line 1", "dtype"}},
      {"op,batch,m,n,k,dtype,m\n", {"line 1", "two columns", "m"}},
      {"op,batch,m,n,k,dtype,predicted_ms\n", {"line 1", "predicted_ms"}},
      {good + "gem,1,1,1,1,fp16\n", {"line 3", "column op", "\"gem\"", "did you mean \"gemm\""}},
      {good + "gemm,1,1,1,1,int4\n", {"line 3", "column dtype", "\"int4\"", "fp8, int8"}},
      {good + "gemm,1,0,1,1,fp16\n", {"line 3", "column m", "\"0\"", "at least 1"}},
      {good + "gemm,-1,1,1,1,fp16\n", {"line 3", "column batch", "\"-1\""}},
      {good + "gemm,1,1,1.5,1,fp16\n", {"line 3", "column n", "\"1.5\""}},
      {good + "gemm,1,1,1,,fp16\n", {"line 3", "column k", "\"\""}},
      {good + "softmax,1,1,1,x,fp16\n", {"line 3", "column k", "\"x\""}},
      {good + "gemm,1,99999999999999999999,1,1,fp16\n", {"line 3", "column m"}},
      {good + "gelu,4000000000,4000000000,1,1,fp16\n", {"line 3", "overflow"}},
      {good + "gemm,1,1,1,fp16\n", {"line 3", "5 cells", "expected 6"}},
      {good + "\ngemm,1,1,1,1,fp16\n", {"line 3", "1 cells"}},
      {"op,batch,m,n,k,dtype,measured_ms\nrelu,1,1,1,1,fp32,0\n", {"line 2", "measured_ms", "\"0\""}},
      {"op,batch,m,n,k,dtype,kv_heads\nflash_attention,8,1,9,64,fp16,3\n", {"line 2", "kv_heads", "\"3\"", "divisor of the 8"}},
      {"op,batch,m,n,k,dtype,kv_heads\nflash_attention,8,1,9,64,fp16,-1\n", {"line 2", "kv_heads", "\"-1\"", "at least 1"}},
      {good + "gemm,1,4096.5,1,1,fp16\n", {"line 3", "column m", "\"4096.5\""}},
  };
  for (const auto& r : rows) {
    CAPTURE(r.text);
    try {
      (void)parse_operators(r.text, "rows.csv");
      FAIL("was read");
    } catch (const file_error& wrong) {
      const std::string what = wrong.what();
      CAPTURE(what);
      CHECK(what.starts_with("rows.csv: "));
      for (const auto& part : r.parts) CHECK(what.find(part) != std::string::npos);
    }
  }
}

TEST_CASE("measured rows are a table of operators that is read again") {
  const auto asked = parse_operators(heading + "linear,1,8,16,32,half\nLayer Norm,2,8,16,,fp32\n", "rows.csv");
  REQUIRE(asked.rows.size() == 2);
  CHECK(asked.rows[0] == operator_row{"gemm", {1, 8, 16, 32}, number_format::fp16});
  CHECK(asked.rows[1] == operator_row{"layernorm", {2, 8, 16, 1}, number_format::fp32});
  const auto text = measured_csv(asked.rows, std::vector<double>{0.25, 3.5});
  const auto again = parse_operators(text, "measured.csv");
  CHECK(again.rows == asked.rows);
  CHECK(again.operators == asked.operators);
  CHECK(again.measured_ms == std::vector<double>{0.25, 3.5});
}

TEST_CASE("key heads, cells in quotes, and whole numbers with a point") {
  const auto file = parse_operators(
      "op,batch,kv_heads,m,n,k,dtype,note\n"
      "\"flash_attention\",32.0,8,1,4096.,128,bf16,\"of a token, with a cache\"\n"
      "flash_attention_causal,32,,512,512,128,bf16,plain\n"
      "gemm,1,8,16,16,16,bf16,not of products\n"
      "flash_attention,32,0,512,512,128,bf16,\"so \"\"called\"\", not told\"\n",
      "rows.csv");
  REQUIRE(file.operators.size() == 4);
  CHECK(file.operators[3] == flash_attention(32, 32, 512, 512, 128, false, number_format::bf16));
  CHECK(file.operators[0] == cached_attention(32, 8, 1, 4096, 128, false, number_format::bf16));
  CHECK(file.operators[1] == flash_attention(32, 32, 512, 512, 128, true, number_format::bf16));
  CHECK(file.operators[2] == repeated(gemm(16, 16, 16, number_format::bf16)));
  const auto again = parse_operators(measured_csv(file.rows, std::vector<double>{1, 2, 3, 4}), "again.csv");
  CHECK(again.operators == file.operators);
  CHECK(again.rows == file.rows);
}

TEST_CASE("line ends in quoted cells and of other systems, and quotes that nobody closes") {
  const std::string notes =
      "op,batch,m,n,k,dtype,note\ngemm,1,8,8,8,torch.float16,\"one,\n\"\"two\"\"\"\nsoftmax,1,8,8,,fp16,\"\n\n\"\n";
  const auto read = parse_operators(notes, "notes.csv");
  REQUIRE(read.lines.size() == 2);
  CHECK(read.lines[0] == "gemm,1,8,8,8,torch.float16,\"one,\n\"\"two\"\"\"");
  CHECK(read.line_numbers == std::vector<int>{2, 4});
  CHECK(to_csv(read, {1, 2}).find("\n\n\",2.000000\n") != std::string::npos);
  CHECK(parse_operators(to_csv(read, {1, 2}).replace(0, 33, "op,batch,m,n,k,dtype,note,other"), "again.csv").rows == read.rows);
  const auto old = parse_operators("op,batch,m,n,k,dtype\rgemm,1,8,8,8,fp16\rsoftmax,1,8,8,,fp16\r", "old.csv");
  CHECK(old.lines.size() == 2);

  // Of a quote that is not closed, one row is wrong, and told where.
  std::string told;
  int wrong = 0;
  const auto left = [&](const std::string& text) {
    told.clear();
    wrong = 0;
    const auto tell = [&](const file_error& e) {
      ++wrong;
      told = e.what();
    };
    return parse_operators(text, "rows.csv", tell).lines.size();
  };
  const std::string first_line = "op,batch,m,n,k,dtype,note\n", row = "gemm,1,8,8,8,fp16,\"a\"\n";
  CHECK(left(first_line + row + "gemm,1,8,\"8,8,fp16,a\n" + row + row) == 3);
  CHECK(wrong == 1);
  CHECK(told.find("rows.csv: line 3: found 4 cells, expected 7") == 0);
  CHECK(left(first_line + "gemm,1,\"8,8,8,fp16,\n" + row + "gemm,1,8,8,\"8,fp16,\n" + row) == 2);
  CHECK(wrong == 2);
  const std::string utf16("o\0p\0,\0", 6);
  CHECK_THROWS_WITH_AS((void)parse_operators(utf16, "u.csv"), "u.csv: is in UTF-16, expected UTF-8 (Excel: CSV UTF-8)",
                       file_error);
  CHECK_THROWS_WITH_AS((void)parse_operators(first_line + "ge" + std::string(1, '\0') + ",1,1,1,1,fp16,\n", "z.csv"),
                       doctest::Contains("found \"ge\\x00\""), file_error);
  CHECK_THROWS_WITH_AS((void)parse_operators("op|m\n", "b.csv"), doctest::Contains("separated by bars"), file_error);
}

TEST_CASE("tables as R, pandas and spreadsheets write them") {
  CHECK(only("gemm,1,1e+05,2048.000,4e3,fp16") == only("gemm,1,100000,2048,4000,fp16"));
  for (const char* nothing : {"NA", "nan", "NaN", "NULL", "None", "<NA>", "0.0"})
    CHECK(only(std::string("softmax,64,2048,2048,") + nothing + ",fp16") == only("softmax,64,2048,2048,,fp16"));
  CHECK(parse_operators("sep=,\n" + heading + "gemm,1,2,3,4,fp16\n", "x.csv").line_numbers[0] == 3);

  const auto refused = [](const std::string& text, const std::string& why) {
    CHECK_THROWS_WITH_AS((void)parse_operators(text, "x.csv"), doctest::Contains(why.c_str()), file_error);
  };
  refused("op;batch;m;n;k;dtype\ngemm;1;2;3;4;fp16\n", "line 1: cells are separated by semicolons, expected commas");
  refused("op\tbatch\tm\tn\tk\tdtype\n", "line 1: cells are separated by tabs, expected commas");
  refused(std::string("\xFF\xFEo\0p\0", 6), "is in UTF-16, expected UTF-8");
  for (const char* size : {"1.5", "1e-3", "0.5", "1e16", "1e", "NA", "inf", "nan", "1e999"})
    refused(heading + "gemm,1," + size + ",3,4,fp16\n", std::string("column m: found \"") + size + "\", expected a whole number");
}
