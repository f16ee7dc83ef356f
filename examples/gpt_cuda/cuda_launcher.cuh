// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>

#include <cublasLt.h>
#include <cublas_v2.h>

#include <hetsched/core/error.hpp>
#include <hetsched/cuda/runtime.hpp>

#include <gpt_cuda/flash.cuh>
#include <gpt_cuda/products.hpp>
#include <gpt_cuda/tensor.hpp>

namespace gpt_cuda {

namespace detail {

/// The lanes of a warp.
struct warp {
  static constexpr int lanes = 32;
  int lane;
  __device__ static float sum(float x) {
    for (int apart = lanes / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
  }
  __device__ static double sum(double x) {
    for (int apart = lanes / 2; apart > 0; apart /= 2) x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
  }
  __device__ static float most(float x) {
    for (int apart = lanes / 2; apart > 0; apart /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, apart));
    return x;
  }
};

template <class Body, class... Arguments>
__global__ void run_each(int n, Body body, Arguments... a) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) body(i, a...);
}
template <class Body, class... Arguments>
__global__ void run_teams(int n, Body body, Arguments... a) {
  const warp team{static_cast<int>(threadIdx.x % warp::lanes)};
  const int warps = blockDim.x / warp::lanes;
  for (int i = blockIdx.x * warps + threadIdx.x / warp::lanes; i < n; i += gridDim.x * warps) body(team, i, a...);
}

/// A handle of cuBLAS for the device that is current when it is made.
class cublas {
 public:
  cublas() { require(cublasCreate(&handle_), "cublasCreate"); }
  cublas(const cublas&) = delete;
  cublas& operator=(const cublas&) = delete;
  ~cublas() { (void)cublasDestroy(handle_); }
  /// The calling thread's own for this device, which is current.
  static cublas& of_thread(int device) {
    static thread_local std::map<int, cublas> own;
    return own[device];
  }
  void multiply(cudaStream_t stream, const product_call& p) {
    require(cublasSetStream(handle_, stream), "cublasSetStream");
    const auto type = p.half ? CUDA_R_16BF : CUDA_R_32F;
    const bool half_c = p.half_c.data != nullptr;
    void* const c = half_c ? static_cast<void*>(p.half_c.data) : p.c.data;
    const auto op = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
    const float one = 1;
    require(
        cublasGemmEx(handle_, op(p.transpose_a), op(p.transpose_b), p.m, p.n, p.k, &one, p.a.data, type, p.lda, p.b.data, type,
                     p.ldb, &p.beta, c, half_c ? CUDA_R_16BF : CUDA_R_32F, p.ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
  }

 private:
  static void require(cublasStatus_t status, const char* call) {
    if (status != CUBLAS_STATUS_SUCCESS) throw hetsched::error(std::string(call) + ": " + cublasGetStatusString(status));
  }
  cublasHandle_t handle_{};
};

/// cuBLASLt for the device that is current when it is made. See fused_products.
class cublas_lt {
 public:
  struct plan {
    cublasLtMatmulDesc_t what{};
    cublasLtMatrixLayout_t a{}, b{}, c{};
    cublasLtMatmulAlgo_t algorithm{};
    std::size_t workspace_bytes = 0;
    plan() = default;
    plan(const plan&) = delete;
    plan& operator=(const plan&) = delete;
    ~plan() {
      for (const auto m : {a, b, c})
        if (m) (void)cublasLtMatrixLayoutDestroy(m);
      if (what) (void)cublasLtMatmulDescDestroy(what);
    }
  };
  cublas_lt() { require(cublasLtCreate(&handle_), "cublasLtCreate"); }
  cublas_lt(const cublas_lt&) = delete;
  cublas_lt& operator=(const cublas_lt&) = delete;
  ~cublas_lt() { (void)cublasLtDestroy(handle_); }

  [[nodiscard]] std::unique_ptr<plan> choose(const product_call& p, std::size_t most_workspace_bytes) {
    auto made = std::make_unique<plan>();
    require(cublasLtMatmulDescCreate(&made->what, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const auto op = [](bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; };
    set(*made, CUBLASLT_MATMUL_DESC_TRANSA, op(p.transpose_a));
    set(*made, CUBLASLT_MATMUL_DESC_TRANSB, op(p.transpose_b));
    set(*made, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p.after));
    set_memory(*made, p);
    const auto layout = [&](cublasLtMatrixLayout_t& m, bool half, bool transpose, int rows, int columns, int apart) {
      require(cublasLtMatrixLayoutCreate(&m, half ? CUDA_R_16BF : CUDA_R_32F, transpose ? columns : rows,
                                         transpose ? rows : columns, apart),
              "cublasLtMatrixLayoutCreate");
    };
    layout(made->a, p.half, p.transpose_a, p.m, p.k, p.lda);
    layout(made->b, p.half, p.transpose_b, p.k, p.n, p.ldb);
    layout(made->c, p.half_c.data != nullptr, false, p.m, p.n, p.ldc);
    cublasLtMatmulPreference_t wanted{};
    require(cublasLtMatmulPreferenceCreate(&wanted), "cublasLtMatmulPreferenceCreate");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, const auto& value) {
      (void)cublasLtMatmulPreferenceSetAttribute(wanted, which, &value, sizeof value);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, most_workspace_bytes);
    for (const auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                             CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      prefer(which, std::uint32_t{16});
    cublasLtMatmulHeuristicResult_t found{};
    int count = 0;
    const auto status =
        cublasLtMatmulAlgoGetHeuristic(handle_, made->what, made->a, made->b, made->c, made->c, wanted, 1, &found, &count);
    (void)cublasLtMatmulPreferenceDestroy(wanted);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE)
      require(status, "cublasLtMatmulAlgoGetHeuristic");
    if (status != CUBLAS_STATUS_SUCCESS || count == 0 || found.state != CUBLAS_STATUS_SUCCESS) return nullptr;
    made->algorithm = found.algo;
    made->workspace_bytes = found.workspaceSize;
    return made;
  }
  [[nodiscard]] int matmul(plan& with, const product_call& p, void* workspace, std::size_t workspace_bytes,
                           const hetsched::cuda_queue<hetsched::cuda_runtime>& q) {
    set_memory(with, p);
    const float one = 1;
    void* const c = p.half_c.data ? static_cast<void*>(p.half_c.data) : p.c.data;
    return cublasLtMatmul(handle_, with.what, &one, p.a.data, with.a, p.b.data, with.b, &p.beta, c, with.c, c, with.c,
                          &with.algorithm, workspace, workspace_bytes, q.stream());
  }

 private:
  static cublasLtEpilogue_t epilogue_of(epilogue e) {
    switch (e) {
      case epilogue::bias:
        return CUBLASLT_EPILOGUE_BIAS;
      case epilogue::gelu_aux:
        return CUBLASLT_EPILOGUE_GELU_AUX;
      case epilogue::gelu_aux_bias:
        return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
      case epilogue::dgelu:
        return CUBLASLT_EPILOGUE_DGELU;
      case epilogue::dgelu_bgrad:
        return CUBLASLT_EPILOGUE_DGELU_BGRAD;
      case epilogue::bgrada:
        return CUBLASLT_EPILOGUE_BGRADA;
      default:
        return CUBLASLT_EPILOGUE_DEFAULT;
    }
  }
  template <class T>
  static void set(plan& made, cublasLtMatmulDescAttributes_t which, const T& value) {
    require(cublasLtMatmulDescSetAttribute(made.what, which, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  }
  static void set_memory(plan& made, const product_call& p) {
    if (p.has_bias()) set(made, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias.data);
    if (p.sums_bias()) set(made, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.summed_bias.data);
    if (p.keeps_aux()) set(made, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.kept_aux.data);
    if (p.takes_aux()) set(made, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux.data);
    if (p.keeps_aux() || p.takes_aux()) set(made, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, std::int64_t{p.ldc});
  }
  static void require(cublasStatus_t status, const char* call) {
    if (status != CUBLAS_STATUS_SUCCESS) throw hetsched::error(std::string(call) + ": " + cublasGetStatusString(status));
  }
  cublasLtHandle_t handle_{};
};

}  // namespace detail

/// Kernels on a GPU: a thread for each index, a warp for each row or what flash.cuh has instead; products by cuBLAS.
template <>
struct launcher<hetsched::cuda_runtime> {
  using queue = hetsched::cuda_queue<hetsched::cuda_runtime>;
  static constexpr int threads = 256, most_blocks = 4096;
  static int blocks(int n, int each) { return std::min((n + each - 1) / each, most_blocks); }

  template <class Body, class... Arguments>
  static void each(const queue& q, int n, const Body& body, const Arguments&... a) {
    detail::run_each<<<blocks(n, threads), threads, 0, q.stream()>>>(n, body, passed(a)...);
    q.own()->require(cudaPeekAtLastError(), "cudaLaunchKernel");
  }
  template <class Body, class... Arguments>
  static void teams(const queue& q, int n, const Body& body, const Arguments&... a) {
    if (!instead(q.stream(), n, body, passed(a)...))
      detail::run_teams<<<blocks(n, threads / detail::warp::lanes), threads, 0, q.stream()>>>(n, body, passed(a)...);
    q.own()->require(cudaPeekAtLastError(), "cudaLaunchKernel");
  }
  template <class Body>
  static constexpr bool is_attention =
      std::is_same_v<Body, attention_forward> || std::is_same_v<Body, attention_queries_backward> ||
      std::is_same_v<Body, attention_keys_backward>;
  template <class... Arguments>
  static bool instead(cudaStream_t stream, int n, const Arguments&... a) {
    if constexpr (requires { flash::instead(stream, n, a...); }) {
      return flash::instead(stream, n, a...);
    } else {
      static_assert(!is_attention<std::tuple_element_t<0, std::tuple<Arguments...>>>, "flash.cuh has another signature");
      return false;
    }
  }
  static void multiply(const queue& q, const product_call& p) { detail::cublas::of_thread(q.device()).multiply(q.stream(), p); }
  static inline std::atomic<std::int64_t> multiplied_with = 0;  ///< products with epilogues, of this process
  static bool multiply_with(const queue& q, const product_call& p) {
    static thread_local std::map<int, fused_products<detail::cublas_lt, hetsched::cuda_runtime>> own;  // by device
    const bool done = own[q.device()].multiply(q, p);
    multiplied_with += done;
    return done;
  }
};

}  // namespace gpt_cuda
