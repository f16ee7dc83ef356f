// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>

#include <cublas_v2.h>

#include <hetsched/core/error.hpp>
#include <hetsched/cuda/runtime.hpp>

#include <gpt_cuda/flash.cuh>
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
};

}  // namespace gpt_cuda
