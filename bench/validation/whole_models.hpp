// SPDX-License-Identifier: Apache-2.0
#pragma once

// Transformers as the kernels that an eager framework launches, forward and backward, in fp32.
#include <cstdint>
#include <string>
#include <vector>

#include <hetsched/cost/tile.hpp>

namespace validation {

using namespace hetsched;

enum class architecture { bert, gpt2, opt };

struct whole_model {
  architecture kind;
  std::int64_t layers, hidden, heads, vocab;
};

struct kernel {
  operator_shape op;
  double times = 1;
};

struct kernel_list {
  std::vector<kernel> forward, backward;

  static constexpr auto f = number_format::fp32;
  double times = 1;    // of what is added from here on
  bool fused = false;  // elementwise work rides on its neighbours
  bool training = false;

  void add(const operator_shape& op, const std::vector<operator_shape>& back) {
    forward.push_back({op, times});
    for (const auto& b : back) backward.push_back({b, times});
  }
  void linear(std::int64_t tokens, std::int64_t in, std::int64_t out, bool bias = true) {
    std::vector<operator_shape> back{gemm(tokens, in, out, f), gemm(out, in, tokens, f)};
    if (bias) back.push_back(elementwise(tokens * out, 1, 0, f));
    add(gemm(tokens, out, in, f), back);
  }
  void bmm(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k) {
    add(batched_gemm(batch, m, n, k, f), {batched_gemm(batch, m, k, n, f), batched_gemm(batch, k, n, m, f)});
  }
  // An elementwise kernel; back_read and back_written are what its gradient moves.
  void map(std::int64_t elements, int read, int written, int back_read, int back_written) {
    if (fused) return;
    std::vector<operator_shape> back;
    if (back_read + back_written > 0) back.push_back(elementwise(elements, back_read, back_written, f));
    add(elementwise(elements, read, written, f), back);
  }
  void rows_softmax(std::int64_t rows, std::int64_t columns) {
    add(softmax(rows, columns, f), {elementwise(rows * columns, 2, 1, f)});
  }
  // Its gradient reads input and gradient for each of input and weights.
  void rows_norm(std::int64_t rows, std::int64_t columns) {
    add(norm(rows, columns, f), {norm(rows, columns, f), elementwise(rows * columns, 2, 0, f)});
  }
  void dropout(std::int64_t elements) {
    if (training) map(elements, 1, 1, 1, 1);
  }
};

/// One pass over `batch` sequences on one of `tensor` devices that share every layer's heads and inner width.
[[nodiscard]] inline kernel_list kernels_of(const whole_model& m, std::int64_t batch, std::int64_t sequence, bool training,
                                            bool fused, std::int64_t tensor = 1) {
  kernel_list k;
  k.training = training;
  k.fused = fused;
  const auto h = m.hidden, tokens = batch * sequence, wide = tokens * h, head = h / m.heads;
  // of one device of a tensor-parallel group
  const auto groups = batch * m.heads / tensor, part = h / tensor, narrow = tokens * part, ffn = 4 * part;
  const auto scores = groups * sequence * sequence;

  k.map(wide, 1, 1, 2, 1);  // word embedding
  k.map(wide, 2, 1, 1, 0);  // positions
  if (m.kind == architecture::bert) {
    k.map(wide, 2, 1, 0, 0);
    k.rows_norm(tokens, h);
  }
  k.dropout(wide);

  k.times = static_cast<double>(m.layers);
  if (m.kind != architecture::bert) k.rows_norm(tokens, h);
  if (m.kind == architecture::gpt2)
    k.linear(tokens, h, 3 * part);
  else
    for (int i = 0; i < 3; ++i) k.linear(tokens, h, part);
  if (m.kind == architecture::gpt2 && training) k.backward.push_back({elementwise(3 * narrow, 1, 1, kernel_list::f), k.times});
  if (m.kind == architecture::opt) k.map(narrow, 1, 1, 1, 1);  // queries scaled
  for (int i = 0; i < 3; ++i) k.map(narrow, 1, 1, 1, 1);       // heads side by side: copies
  k.bmm(groups, sequence, sequence, head);
  if (m.kind != architecture::opt) k.map(scores, 1, 1, 1, 1);  // scaled
  k.map(scores, m.kind == architecture::opt ? 2 : 1, 1, m.kind == architecture::gpt2 ? 1 : 0,
        m.kind == architecture::gpt2 ? 1 : 0);                 // masked
  if (m.kind == architecture::opt) k.map(scores, 1, 1, 2, 1);  // clamped
  k.rows_softmax(groups * sequence, sequence);
  k.dropout(scores);
  k.bmm(groups, sequence, head, sequence);
  k.map(narrow, 1, 1, 1, 1);
  k.linear(tokens, part, h);
  k.dropout(wide);
  k.map(wide, 2, 1, 2, 1);
  k.rows_norm(tokens, h);
  k.linear(tokens, h, ffn);
  if (m.kind == architecture::gpt2) {
    // 0.5 x (1 + tanh(a (x + b x^3))), an operation at a time
    k.map(tokens * ffn, 1, 1, 3, 2);
    k.map(tokens * ffn, 1, 1, 1, 1);
    k.map(tokens * ffn, 2, 1, 2, 1);
    k.map(tokens * ffn, 1, 1, 1, 1);
    k.map(tokens * ffn, 1, 1, 2, 1);
    k.map(tokens * ffn, 1, 1, 0, 0);
    k.map(tokens * ffn, 1, 1, 1, 1);
    k.map(tokens * ffn, 2, 1, 4, 2);
  } else
    k.map(tokens * ffn, 1, 1, 2, 1);
  k.linear(tokens, ffn, h);
  k.dropout(wide);
  k.map(wide, 2, 1, 2, 1);
  if (m.kind == architecture::bert) k.rows_norm(tokens, h);

  k.times = 1;
  if (m.kind != architecture::bert) {
    k.rows_norm(tokens, h);
    k.linear(tokens, h, m.vocab / tensor, false);
  } else if (training) {
    k.linear(tokens, h, h);
    k.map(wide, 1, 1, 2, 1);
    k.rows_norm(tokens, h);
    k.linear(tokens, h, m.vocab);
  }
  if (training) k.backward.push_back({elementwise(tokens * m.vocab / tensor, 2, 1, kernel_list::f), 1});  // the loss
  return k;
}

[[nodiscard]] inline double seconds(const tile_device& d, const std::vector<kernel>& kernels, const tile_constants& c) {
  double sum = 0;
  for (const auto& k : kernels) sum += k.times * predict_operator(d, k.op, c).seconds;
  return sum;
}

/// The models of the table whose sizes are published.
[[nodiscard]] inline bool find_model(const std::string& name, whole_model& m) {
  if (name == "bert_large")
    m = {architecture::bert, 24, 1024, 16, 30522};
  else if (name == "gpt2_large")
    m = {architecture::gpt2, 36, 1280, 20, 50257};
  else if (name == "gpt3_xl")
    m = {architecture::gpt2, 24, 3072, 24, 50257};
  else if (name == "gpt3_27")
    m = {architecture::gpt2, 32, 2560, 32, 50257};
  else if (name == "opt_13")
    m = {architecture::opt, 24, 2048, 32, 50272};
  else
    return false;
  return true;
}

}  // namespace validation
