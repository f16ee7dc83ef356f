// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include <hetsched/core/error.hpp>
#include <hetsched/cuda/buffer.hpp>
#include <hetsched/cuda/queue.hpp>

#include <gpt_cuda/tensor.hpp>

namespace gpt_cuda {

/// Products with epilogues on a device, for one thread. An algorithm is chosen once for sizes, types and epilogue, and kept.
/// Lt: cuBLASLt,
///   plan                                        an algorithm and what goes with it; plan.workspace_bytes is what it needs
///   choose(product_call, most_workspace_bytes)  -> unique_ptr<plan>; null: there is none. Memory is aligned to 16 bytes
///   matmul(plan, product_call, workspace, workspace_bytes, queue) -> cublasStatus_t
template <class Lt, hetsched::cuda_api Api>
class fused_products {
 public:
  static constexpr std::size_t workspace_bytes = 32 << 20;  ///< at most
  static constexpr int not_supported = 15;                  // CUBLAS_STATUS_NOT_SUPPORTED

  /// Whether cuBLASLt's epilogues take such memory: all of it aligned to 16 bytes, columns too, and of aux by 8 numbers.
  [[nodiscard]] static bool is_aligned(const product_call& p) {
    const std::size_t each = p.half ? 2 : 4, each_c = p.half_c.data ? 2 : 4;
    bool all = p.lda * each % 16 == 0 && p.ldb * each % 16 == 0 && p.ldc * each_c % 16 == 0 &&
               ((!p.keeps_aux() && !p.takes_aux()) || p.ldc % 8 == 0);
    product_call::visit(p, [&](const auto& a) { all = all && reinterpret_cast<std::uintptr_t>(a.data) % 16 == 0; });
    return all;
  }
  /// Enqueues it. Returns whether there is such a product.
  /// Throws: error for what cuBLASLt refuses otherwise.
  bool multiply(const hetsched::cuda_queue<Api>& q, const product_call& p) {
    if (!is_aligned(p)) return false;
    const key which{p.after, p.half, p.half_c.data != nullptr, p.transpose_a, p.transpose_b, p.m, p.n, p.k, p.lda, p.ldb,
                    p.ldc,   p.beta};
    auto found = plans_.find(which);
    if (found == plans_.end()) found = plans_.emplace(which, lt_.choose(p, workspace_bytes)).first;
    auto& plan = found->second;
    if (!plan) return false;
    const hetsched::cuda_buffer<Api> workspace(q, plan->workspace_bytes);
    const int status = lt_.matmul(*plan, p, workspace.data(), plan->workspace_bytes, q);
    if (status == 0) return true;
    if (status != not_supported) throw hetsched::error("cublasLtMatmul: status " + std::to_string(status));
    plan.reset();  // the heuristic had promised too much
    return false;
  }

 private:
  using key = std::tuple<epilogue, bool, bool, bool, bool, int, int, int, int, int, int, float>;
  Lt lt_;
  std::map<key, std::unique_ptr<typename Lt::plan>> plans_;
};

}  // namespace gpt_cuda
