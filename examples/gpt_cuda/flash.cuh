// SPDX-License-Identifier: Apache-2.0
// Attention by tiles that stay on the chip (Dao et al. 2022; Dao 2023): a block has the queries, or the keys, of one tile and
// takes those of the other side tile after tile. Every sum has one order, so what comes out has the same bits at every run.
#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_runtime.h>

#include <gpt_cuda/kernels.hpp>

namespace gpt_cuda::flash {

// How a block multiplies tiles that lie in shared memory, rows of `size` numbers `stride` apart. It owns `own` rows and sees
// `seen` others at a time. Of their products a thread has numbers [i][j]: those of the rows row(i) and the columns column(j),
// which are other rows, or numbers of a head.

/// Of bf16 by tensor cores, which add up floats: a warp has 16 rows.
template <int Size>
struct tensor_cores {
  using real = bf16;
  static constexpr int size = Size, stride = size + 8;  // eight rows that follow each other lie in different banks
  static constexpr int threads = 128, own = 64, seen = size > 64 ? 32 : 64;
  static constexpr int rows = 2, columns = seen / 4, head_columns = size / 4, scratch_bytes = 0;

  __device__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  __device__ static int first_row() { return static_cast<int>(threadIdx.x / 32) * 16; }
  __device__ static int row(int i) { return first_row() + lane() / 4 + 8 * i; }
  __device__ static int column(int j) { return j / 2 * 8 + lane() % 4 * 2 + j % 2; }
  /// Over the threads that have numbers of the same rows.
  __device__ static float row_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
  }
  __device__ static float row_most(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
  }

  /// s = a b^T of own and other rows.
  __device__ static void multiply(float (&s)[rows][columns], const bf16* a, const bf16* b) {
#pragma unroll
    for (int i = 0; i < rows; ++i)
#pragma unroll
      for (int j = 0; j < columns; ++j) s[i][j] = 0;
#pragma unroll
    for (int k = 0; k < size; k += 16) {
      std::uint32_t left[4];
      load(left, a + (first_row() + lane() % 16) * stride + k + lane() / 16 * 8);
#pragma unroll
      for (int n = 0; n < seen; n += 16) {
        std::uint32_t right[4];
        load(right, b + (n + lane() / 16 * 8 + lane() % 8) * stride + k + lane() / 8 % 2 * 8);
        add_product(s, n / 8, left, right[0], right[1]);
        add_product(s, n / 8 + 1, left, right[2], right[3]);
      }
    }
  }
  /// o += s b, with s as `multiply` leaves it, rounded.
  __device__ static void add(float (&o)[rows][head_columns], const float (&s)[rows][columns], const bf16* b, float*) {
#pragma unroll
    for (int k = 0; k < seen; k += 16) {
      const int j = k / 4;
      const std::uint32_t left[4] = {pair(s[0][j], s[0][j + 1]), pair(s[1][j], s[1][j + 1]), pair(s[0][j + 2], s[0][j + 3]),
                                     pair(s[1][j + 2], s[1][j + 3])};
#pragma unroll
      for (int n = 0; n < size; n += 16) {
        std::uint32_t right[4];
        load_transposed(right, b + (k + lane() % 16) * stride + n + lane() / 16 * 8);
        add_product(o, n / 8, left, right[0], right[1]);
        add_product(o, n / 8 + 1, left, right[2], right[3]);
      }
    }
  }

 private:
  // Before compute capability 8.0 there is nothing of that, and launches do without (see `launch`).
#if __CUDA_ARCH__ >= 800
  __device__ static std::uint32_t pair(float low, float high) {
    std::uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
  }
  __device__ static void load(std::uint32_t (&x)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
                 : "memory");
  }
  __device__ static void load_transposed(std::uint32_t (&x)[4], const bf16* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(row)))
                 : "memory");
  }
  /// Columns 8 n and those that follow get 16 x 16 times 16 x 8 numbers.
  template <int Columns>
  __device__ static void add_product(float (&c)[rows][Columns], int n, const std::uint32_t (&a)[4], std::uint32_t b0,
                                     std::uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0][2 * n]), "+f"(c[0][2 * n + 1]), "+f"(c[1][2 * n]), "+f"(c[1][2 * n + 1])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
#else
  __device__ static std::uint32_t pair(float, float) { return 0; }
  __device__ static void load(std::uint32_t (&x)[4], const bf16*) { x[0] = x[1] = x[2] = x[3] = 0; }
  __device__ static void load_transposed(std::uint32_t (&x)[4], const bf16* row) { load(x, row); }
  template <int Columns>
  __device__ static void add_product(float (&)[rows][Columns], int, const std::uint32_t (&)[4], std::uint32_t, std::uint32_t) {
    __trap();
  }
#endif
};

/// Of floats: half a warp has a few rows.
template <int Size>
struct plain_cores {
  using real = float;
  static constexpr int size = Size, stride = size + 4;
  static constexpr int threads = 256, rows = size > 64 ? 2 : 4, own = 16 * rows, seen = 32;
  static constexpr int columns = seen / 16, head_columns = size / 16, scratch_stride = seen + 1;
  static constexpr int scratch_bytes = own * scratch_stride * static_cast<int>(sizeof(float));

  __device__ static int lane() { return static_cast<int>(threadIdx.x % 16); }
  __device__ static int row(int i) { return static_cast<int>(threadIdx.x / 16) * rows + i; }
  __device__ static int column(int j) { return lane() + 16 * j; }
  __device__ static float row_sum(float x) {
#pragma unroll
    for (int apart = 8; apart > 0; apart /= 2) x += __shfl_xor_sync(0xffffffffu, x, apart);
    return x;
  }
  __device__ static float row_most(float x) {
#pragma unroll
    for (int apart = 8; apart > 0; apart /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, apart));
    return x;
  }

  __device__ static void multiply(float (&s)[rows][columns], const float* a, const float* b) {
#pragma unroll
    for (int i = 0; i < rows; ++i)
#pragma unroll
      for (int j = 0; j < columns; ++j) s[i][j] = 0;
#pragma unroll 4
    for (int k = 0; k < size; k += 4) {
      float4 left[rows], right[columns];
#pragma unroll
      for (int i = 0; i < rows; ++i) left[i] = *reinterpret_cast<const float4*>(a + row(i) * stride + k);
#pragma unroll
      for (int j = 0; j < columns; ++j) right[j] = *reinterpret_cast<const float4*>(b + column(j) * stride + k);
#pragma unroll
      for (int i = 0; i < rows; ++i)
#pragma unroll
        for (int j = 0; j < columns; ++j) {
          s[i][j] = fmaf(left[i].x, right[j].x, s[i][j]);
          s[i][j] = fmaf(left[i].y, right[j].y, s[i][j]);
          s[i][j] = fmaf(left[i].z, right[j].z, s[i][j]);
          s[i][j] = fmaf(left[i].w, right[j].w, s[i][j]);
        }
    }
  }
  /// Rows of s change hands within the half of a warp that has them.
  __device__ static void add(float (&o)[rows][head_columns], const float (&s)[rows][columns], const float* b, float* scratch) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < rows; ++i)
#pragma unroll
      for (int j = 0; j < columns; ++j) scratch[row(i) * scratch_stride + column(j)] = s[i][j];
    __syncwarp();
#pragma unroll 4
    for (int k = 0; k < seen; ++k) {
      float left[rows];
#pragma unroll
      for (int i = 0; i < rows; ++i) left[i] = scratch[row(i) * scratch_stride + k];
#pragma unroll
      for (int j = 0; j < head_columns; ++j) {
        const float right = b[k * stride + column(j)];
#pragma unroll
        for (int i = 0; i < rows; ++i) o[i][j] = fmaf(left[i], right, o[i][j]);
      }
    }
  }
};

/// Rows that lie `apart` numbers from each other come into shared memory; zeros stand for those from `there` on.
template <class Cores, int Rows>
__device__ void fetch(typename Cores::real* to, const typename Cores::real* from, std::int64_t apart, int there) {
  using real = typename Cores::real;
  constexpr int each = 16 / static_cast<int>(sizeof(real)), pieces = Cores::size / each;
  for (int i = static_cast<int>(threadIdx.x); i < Rows * pieces; i += Cores::threads) {
    const int r = i / pieces, at = i % pieces * each;
    const uint4 piece = r < there ? *reinterpret_cast<const uint4*>(from + r * apart + at) : uint4{0, 0, 0, 0};
    *reinterpret_cast<uint4*>(to + r * Cores::stride + at) = piece;
  }
}
/// What a block keeps in shared memory: own rows of two kinds, others of two kinds, two numbers of each row of the longer kind.
template <class Cores>
struct shared {
  using real = typename Cores::real;
  static constexpr int own = Cores::own * Cores::stride, seen = Cores::seen * Cores::stride;
  static constexpr int longest = Cores::own > Cores::seen ? Cores::own : Cores::seen;
  static constexpr int bytes = (2 * own + 2 * seen) * static_cast<int>(sizeof(real)) +
                               2 * longest * static_cast<int>(sizeof(float)) + Cores::scratch_bytes;
  real *own_1, *own_2, *seen_1, *seen_2;
  float *number_1, *number_2, *scratch;
  __device__ explicit shared(char* memory)
      : own_1(reinterpret_cast<real*>(memory)),
        own_2(own_1 + own),
        seen_1(own_2 + own),
        seen_2(seen_1 + seen),
        number_1(reinterpret_cast<float*>(seen_2 + seen)),
        number_2(number_1 + longest),
        scratch(number_2 + longest) {}
};

/// What a block is of: a tile of a sample's rows, which have a head.
struct work {
  int tile, head, first, first_key;  ///< first rows of the sample
  __device__ explicit work(const attention_shape& s, int tile)
      : tile(tile),
        head(static_cast<int>(blockIdx.y)),
        first(static_cast<int>(blockIdx.z) * s.sequence),
        first_key(static_cast<int>(blockIdx.z) * s.key_rows()) {}
};
constexpr float log2_e = 1.4426950408889634f;

// `kv`: where keys and values are, the memory of the queries or some of their own. See attention_shape.

/// Later tiles see more: they come first.
template <class Cores>
__global__ void __launch_bounds__(Cores::threads)
    forward(attention_shape s, const typename Cores::real* qkv, const typename Cores::real* kv, typename Cores::real* mixed,
            float* logs) {
  extern __shared__ __align__(16) char memory[];
  const shared<Cores> m(memory);
  const work w(s, static_cast<int>(gridDim.x - 1 - blockIdx.x));
  const int query = w.tile * Cores::own, there = min(Cores::own, s.sequence - query), position = s.first_position + query;
  const std::int64_t apart = s.key_columns();
  fetch<Cores, Cores::own>(m.own_1, qkv + s.query(w.first + query, w.head), s.columns(), there);
  const float scale = s.scale(), scale2 = scale * log2_e;
  float most[Cores::rows], sum[Cores::rows], o[Cores::rows][Cores::head_columns], p[Cores::rows][Cores::columns];
#pragma unroll
  for (int i = 0; i < Cores::rows; ++i) {
    most[i] = -INFINITY;
    sum[i] = 0;
#pragma unroll
    for (int j = 0; j < Cores::head_columns; ++j) o[i][j] = 0;
  }
  for (int key = 0; key < position + there; key += Cores::seen) {
    __syncthreads();
    fetch<Cores, Cores::seen>(m.seen_1, kv + s.key(w.first_key + key, w.head), apart, s.key_rows() - key);
    fetch<Cores, Cores::seen>(m.seen_2, kv + s.value(w.first_key + key, w.head), apart, s.key_rows() - key);
    __syncthreads();
    Cores::multiply(p, m.own_1, m.seen_1);
#pragma unroll
    for (int i = 0; i < Cores::rows; ++i) {
      float here = -INFINITY;
#pragma unroll
      for (int j = 0; j < Cores::columns; ++j) {
        if (key + Cores::column(j) > position + Cores::row(i)) p[i][j] = -INFINITY;
        here = fmaxf(here, p[i][j]);
      }
      // The first tile has a key that every row sees: from there on `next` is finite.
      const float next = fmaxf(most[i], Cores::row_most(here)), keep = exp2f((most[i] - next) * scale2);
      float all = 0;
#pragma unroll
      for (int j = 0; j < Cores::columns; ++j) {
        p[i][j] = exp2f((p[i][j] - next) * scale2);
        all += p[i][j];
      }
      sum[i] = sum[i] * keep + all;  // of this thread's columns
      most[i] = next;
#pragma unroll
      for (int j = 0; j < Cores::head_columns; ++j) o[i][j] *= keep;
    }
    Cores::add(o, p, m.seen_2, m.scratch);
  }
#pragma unroll
  for (int i = 0; i < Cores::rows; ++i) {
    const int r = Cores::row(i), row = w.first + query + r;
    const float all = Cores::row_sum(sum[i]);
    if (r >= there) continue;
    if (Cores::column(0) == 0) logs[row * s.heads + w.head] = most[i] * scale + logf(all);
#pragma unroll
    for (int j = 0; j < Cores::head_columns; ++j) put(o[i][j] / all, mixed[s.mixed(row, w.head) + Cores::column(j)]);
  }
}

template <class Cores>
__global__ void __launch_bounds__(Cores::threads)
    queries_backward(attention_shape s, const typename Cores::real* qkv, const typename Cores::real* kv,
                     const typename Cores::real* mixed, const typename Cores::real* dmixed, const float* logs, float* along,
                     typename Cores::real* dqkv) {
  extern __shared__ __align__(16) char memory[];
  const shared<Cores> m(memory);
  const work w(s, static_cast<int>(gridDim.x - 1 - blockIdx.x));
  const int query = w.tile * Cores::own, there = min(Cores::own, s.sequence - query), first = w.first + query;
  const int position = s.first_position + query;
  const std::int64_t apart = s.key_columns();
  fetch<Cores, Cores::own>(m.own_1, qkv + s.query(first, w.head), s.columns(), there);
  fetch<Cores, Cores::own>(m.own_2, dmixed + s.mixed(first, w.head), s.heads * s.size, there);
  __syncthreads();
  // A warp for each row.
  for (int r = static_cast<int>(threadIdx.x / 32); r < Cores::own; r += Cores::threads / 32) {
    float mean = 0;
    if (r < there)
      for (int d = static_cast<int>(threadIdx.x % 32); d < s.size; d += 32)
        mean += to_float(m.own_2[r * Cores::stride + d]) * to_float(mixed[s.mixed(first + r, w.head) + d]);
#pragma unroll
    for (int between = 16; between > 0; between /= 2) mean += __shfl_xor_sync(0xffffffffu, mean, between);
    if (threadIdx.x % 32 != 0) continue;
    m.number_1[r] = r < there ? logs[(first + r) * s.heads + w.head] * log2_e : 0;
    m.number_2[r] = mean;
    if (r < there) along[(first + r) * s.heads + w.head] = mean;
  }
  const float scale = s.scale(), scale2 = scale * log2_e;
  float dq[Cores::rows][Cores::head_columns], p[Cores::rows][Cores::columns], dp[Cores::rows][Cores::columns];
#pragma unroll
  for (int i = 0; i < Cores::rows; ++i)
#pragma unroll
    for (int j = 0; j < Cores::head_columns; ++j) dq[i][j] = 0;
  for (int key = 0; key < position + there; key += Cores::seen) {
    __syncthreads();
    fetch<Cores, Cores::seen>(m.seen_1, kv + s.key(w.first_key + key, w.head), apart, s.key_rows() - key);
    fetch<Cores, Cores::seen>(m.seen_2, kv + s.value(w.first_key + key, w.head), apart, s.key_rows() - key);
    __syncthreads();
    Cores::multiply(p, m.own_1, m.seen_1);
    Cores::multiply(dp, m.own_2, m.seen_2);
#pragma unroll
    for (int i = 0; i < Cores::rows; ++i) {
      const float log = m.number_1[Cores::row(i)], mean = m.number_2[Cores::row(i)];
#pragma unroll
      for (int j = 0; j < Cores::columns; ++j) {
        const bool sees = key + Cores::column(j) <= position + Cores::row(i);
        p[i][j] = sees ? exp2f(p[i][j] * scale2 - log) * (dp[i][j] - mean) : 0;
      }
    }
    Cores::add(dq, p, m.seen_1, m.scratch);
  }
#pragma unroll
  for (int i = 0; i < Cores::rows; ++i) {
    const int r = Cores::row(i);
    if (r >= there) continue;
#pragma unroll
    for (int j = 0; j < Cores::head_columns; ++j) put(dq[i][j] * scale, dqkv[s.query(first + r, w.head) + Cores::column(j)]);
  }
}

/// w.head: of keys. Earlier tiles are seen by more, and come first.
template <class Cores, class Sum>
__global__ void __launch_bounds__(Cores::threads)
    keys_backward(attention_shape s, const typename Cores::real* qkv, const typename Cores::real* kv,
                  const typename Cores::real* dmixed, const float* logs, const float* along, Sum* dkv) {
  extern __shared__ __align__(16) char memory[];
  const shared<Cores> m(memory);
  const work w(s, static_cast<int>(blockIdx.x));
  const int key = w.tile * Cores::own, there = min(Cores::own, s.key_rows() - key), shared_by = s.heads / s.kv_heads;
  const std::int64_t apart = s.columns();
  const int head = w.head * shared_by;
  fetch<Cores, Cores::own>(m.own_1, kv + s.key(w.first_key + key, head), s.key_columns(), there);
  fetch<Cores, Cores::own>(m.own_2, kv + s.value(w.first_key + key, head), s.key_columns(), there);
  const float scale = s.scale(), scale2 = scale * log2_e;
  float dk[Cores::rows][Cores::head_columns], dv[Cores::rows][Cores::head_columns];
  float p[Cores::rows][Cores::columns], dp[Cores::rows][Cores::columns];
#pragma unroll
  for (int i = 0; i < Cores::rows; ++i)
#pragma unroll
    for (int j = 0; j < Cores::head_columns; ++j) dk[i][j] = dv[i][j] = 0;
  for (int h = head; h < head + shared_by; ++h)
    for (int query = s.first_seeing_in_sample(key); query < s.sequence; query += Cores::seen) {
      const int first = w.first + query, queries = s.sequence - query, position = s.first_position + query;
      __syncthreads();
      fetch<Cores, Cores::seen>(m.seen_1, qkv + s.query(first, h), apart, queries);
      fetch<Cores, Cores::seen>(m.seen_2, dmixed + s.mixed(first, h), s.heads * s.size, queries);
      for (int r = static_cast<int>(threadIdx.x); r < Cores::seen; r += Cores::threads) {
        m.number_1[r] = r < queries ? logs[(first + r) * s.heads + h] * log2_e : 0;
        m.number_2[r] = r < queries ? along[(first + r) * s.heads + h] : 0;
      }
      __syncthreads();
      Cores::multiply(p, m.own_1, m.seen_1);
#pragma unroll
      for (int j = 0; j < Cores::columns; ++j) {
        const int c = Cores::column(j);
        const float log = m.number_1[c];
#pragma unroll
        for (int i = 0; i < Cores::rows; ++i) {
          const bool seen = c < queries && key + Cores::row(i) <= position + c;
          p[i][j] = seen ? exp2f(p[i][j] * scale2 - log) : 0;
        }
      }
      Cores::add(dv, p, m.seen_2, m.scratch);
      Cores::multiply(dp, m.own_2, m.seen_2);
#pragma unroll
      for (int j = 0; j < Cores::columns; ++j) {
        const float mean = m.number_2[Cores::column(j)];
#pragma unroll
        for (int i = 0; i < Cores::rows; ++i) p[i][j] *= dp[i][j] - mean;
      }
      Cores::add(dk, p, m.seen_1, m.scratch);
    }
#pragma unroll
  for (int i = 0; i < Cores::rows; ++i) {
    const int r = Cores::row(i), row = w.first_key + key + r;
    if (r >= there) continue;
#pragma unroll
    for (int j = 0; j < Cores::head_columns; ++j) {
      put(dk[i][j] * scale, dkv[s.key(row, head) + Cores::column(j)]);
      put(dv[i][j], dkv[s.value(row, head) + Cores::column(j)]);
    }
  }
}

// Of `all` teams for rows of so many heads, `rows` to a sample.
// False if the kernel was compiled for a GPU that its cores are not there on.
template <class Cores, class... Arguments>
bool launch(cudaStream_t stream, void (*kernel)(attention_shape, Arguments...), const attention_shape& s, int all, int heads,
            int rows, std::type_identity_t<Arguments>... a) {
  constexpr int bytes = shared<Cores>::bytes;
  if constexpr (std::is_same_v<typename Cores::real, bf16>) {
    cudaFuncAttributes compiled{};
    if (cudaFuncGetAttributes(&compiled, kernel) == cudaSuccess && compiled.ptxVersion < 80) return false;
  }
  if (bytes > 48 * 1024) (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const dim3 blocks(static_cast<unsigned>((rows + Cores::own - 1) / Cores::own), static_cast<unsigned>(heads),
                    static_cast<unsigned>(all / heads / rows));
  kernel<<<blocks, Cores::threads, bytes, stream>>>(s, a...);
  return true;
}

/// work(cores) of those for the heads' width; false if there are none.
template <class Real, class Work>
bool with_cores(int size, const Work& work) {
  const auto with = [&]<int Size>() {
    if (size != Size) return false;
    if constexpr (std::is_same_v<Real, bf16>)
      return work(tensor_cores<Size>{});
    else
      return work(plain_cores<Size>{});
  };
  return with.template operator()<16>() || with.template operator()<32>() || with.template operator()<64>() ||
         with.template operator()<128>();
}

/// Whether n teams for rows of so many heads, `rows` to a sample, are those of whole samples.
inline bool are_whole(int n, int heads, int rows, const attention_shape& s) {
  return s.heads % s.kv_heads == 0 && n % (heads * rows) == 0;
}

// What a launcher may do instead of a team for each row: true if it has been done.

template <class Real>
bool instead(cudaStream_t stream, int n, const attention_forward&, const attention_shape& s, const Real* qkv, const Real* kv,
             Real* mixed, float* logs) {
  if (!are_whole(n, s.heads, s.sequence, s)) return false;
  return with_cores<Real>(s.size, [&](auto cores) {
    using C = decltype(cores);
    return launch<C>(stream, forward<C>, s, n, s.heads, s.sequence, qkv, kv, mixed, logs);
  });
}
template <class Real>
bool instead(cudaStream_t stream, int n, const attention_queries_backward&, const attention_shape& s, const Real* qkv,
             const Real* kv, const Real* mixed, const Real* dmixed, const float* logs, float* along, Real* dqkv) {
  if (!are_whole(n, s.heads, s.sequence, s)) return false;
  return with_cores<Real>(s.size, [&](auto cores) {
    using C = decltype(cores);
    return launch<C>(stream, queries_backward<C>, s, n, s.heads, s.sequence, qkv, kv, mixed, dmixed, logs, along, dqkv);
  });
}
template <class Real, class Sum>
bool instead(cudaStream_t stream, int n, const attention_keys_backward&, const attention_shape& s, const Real* qkv,
             const Real* kv, const Real* dmixed, const float* logs, const float* along, Sum* dkv) {
  if (!are_whole(n, s.kv_heads, s.key_rows(), s)) return false;
  return with_cores<Real>(s.size, [&](auto cores) {
    using C = decltype(cores);
    return launch<C>(stream, keys_backward<C, Sum>, s, n, s.kv_heads, s.key_rows(), qkv, kv, dmixed, logs, along, dkv);
  });
}

// Keys and values that lie behind their queries.

template <class Real>
bool instead(cudaStream_t stream, int n, const attention_forward& body, const attention_shape& s, const Real* qkv, Real* mixed,
             float* logs) {
  return instead(stream, n, body, s, qkv, qkv, mixed, logs);
}
template <class Real>
bool instead(cudaStream_t stream, int n, const attention_queries_backward& body, const attention_shape& s, const Real* qkv,
             const Real* mixed, const Real* dmixed, const float* logs, float* along, Real* dqkv) {
  return instead(stream, n, body, s, qkv, qkv, mixed, dmixed, logs, along, dqkv);
}
template <class Real>
bool instead(cudaStream_t stream, int n, const attention_keys_backward& body, const attention_shape& s, const Real* qkv,
             const Real* dmixed, const float* logs, const float* along, Real* dqkv) {
  return instead(stream, n, body, s, qkv, qkv, dmixed, logs, along, dqkv);
}

}  // namespace gpt_cuda::flash
