// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// What kernels do, for one index or one row: a launch runs it on a GPU, a loop on the host, where it is tested.
#ifdef __CUDACC__
#define GPT_KERNEL __host__ __device__
#else
#define GPT_KERNEL
#endif

namespace gpt_cuda {

/// The upper half of a float, of CUDA's type of that name.
struct bf16 {
  std::uint16_t bits = 0;
};
/// The nearest, of two that are as near the even one; NaN stays one.
[[nodiscard]] GPT_KERNEL inline bf16 to_bf16(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  if (x != x) return {static_cast<std::uint16_t>(bits >> 16 | 64)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}
[[nodiscard]] GPT_KERNEL inline float to_float(bf16 x) {
  const std::uint32_t bits = static_cast<std::uint32_t>(x.bits) << 16;
  float y = 0;
  std::memcpy(&y, &bits, sizeof y);
  return y;
}
[[nodiscard]] GPT_KERNEL inline float to_float(float x) { return x; }
GPT_KERNEL inline void put(float x, float& y) { y = x; }
GPT_KERNEL inline void put(float x, bf16& y) { y = to_bf16(x); }

/// Those who work on one row together: on a GPU the lanes of a warp, on the host one. Lanes read nothing that others of their
/// team have written.
struct one_lane {
  static constexpr int lane = 0, lanes = 1;
  [[nodiscard]] GPT_KERNEL static float sum(float x) { return x; }
  [[nodiscard]] GPT_KERNEL static double sum(double x) { return x; }
  [[nodiscard]] GPT_KERNEL static float most(float x) { return x; }
};

// Below: of one index i, or of one row with a team; rows x columns, row after row.

struct add_to {
  template <class Real>
  GPT_KERNEL void operator()(int i, const Real* term, float* sum) const {
    sum[i] += to_float(term[i]);
  }
};
struct add_both {
  GPT_KERNEL void operator()(int i, const float* a, const float* b, float* sum) const { sum[i] = a[i] + b[i]; }
};
struct scale_by {
  GPT_KERNEL void operator()(int i, float factor, float* x) const { x[i] *= factor; }
};
struct fill_with {
  GPT_KERNEL void operator()(int i, float value, float* x) const { x[i] = value; }
};
struct round_to_bf16 {
  GPT_KERNEL void operator()(int i, const float* x, bf16* y) const { y[i] = to_bf16(x[i]); }
};
struct widen {
  template <class Real>
  GPT_KERNEL void operator()(int i, const Real* x, float* y) const {
    y[i] = to_float(x[i]);
  }
};
struct copy_numbers {
  GPT_KERNEL void operator()(int i, const float* x, float* y) const { y[i] = x[i]; }
};

/// Adds a bias to `y`, and another tensor where it is not null.
struct add_bias {
  template <class Real>
  GPT_KERNEL void operator()(int i, int columns, const float* bias, const float* more, Real* y) const {
    put(to_float(y[i]) + (bias ? bias[i % columns] : 0) + (more ? more[i] : 0), y[i]);
  }
};

// Sums of columns go by bands of rows, so that there is work for all of a GPU, and their order depends on nothing else.
struct band {
  static constexpr int rows = 64;
  [[nodiscard]] GPT_KERNEL static int count(int all) { return (all + rows - 1) / rows; }
  [[nodiscard]] GPT_KERNEL static int end(int which, int all) { return (which + 1) * rows < all ? (which + 1) * rows : all; }
};
/// Of index band * columns + j.
struct sum_band {
  template <class Real>
  GPT_KERNEL void operator()(int i, int rows, int columns, const Real* x, float* sums) const {
    const int which = i / columns, j = i % columns, end = band::end(which, rows);
    float sum = 0;
    for (int r = which * band::rows; r < end; ++r) sum += to_float(x[r * columns + j]);
    sums[i] = sum;
  }
};
/// The same of a norm's gain and, unless null, bias.
struct norm_band {
  GPT_KERNEL void operator()(int i, int rows, int columns, const float* dy, const float* x, const float* mean, const float* scale,
                             float* gains, float* biases) const {
    const int which = i / columns, j = i % columns, end = band::end(which, rows);
    float gain = 0, bias = 0;
    for (int r = which * band::rows; r < end; ++r) {
      const float d = dy[r * columns + j];
      gain += d * ((x[r * columns + j] - mean[r]) * scale[r]);
      bias += d;
    }
    gains[i] = gain;
    if (biases) biases[i] = bias;
  }
};
/// Of column j; `sum` gets more.
struct sum_bands {
  GPT_KERNEL void operator()(int j, int bands, int columns, const float* sums, float* sum) const {
    float all = 0;
    for (int b = 0; b < bands; ++b) all += sums[b * columns + j];
    sum[j] += all;
  }
};

/// Of x + term + term_bias, which becomes `sum`, or without a term of x. `mean`, `scale`: of each row, 1 / deviation; `y`: what
/// comes out. Without a bias: the root mean square's norm.
struct norm_forward {
  template <class Team, class Real>
  GPT_KERNEL void operator()(const Team& t, int row, int columns, const float* x, const float* term, const float* term_bias,
                             const float* gain, const float* bias, float* sum, float* mean, float* scale, Real* y) const {
    const int first = row * columns;
    if (term) {
      for (int j = t.lane; j < columns; j += t.lanes)
        sum[first + j] = x[first + j] + term[first + j] + (term_bias ? term_bias[j] : 0);
      x = sum;
    }
    float middle = 0, square = 0;
    if (bias) {
      for (int j = t.lane; j < columns; j += t.lanes) middle += x[first + j];
      middle = t.sum(middle) / static_cast<float>(columns);
    }
    for (int j = t.lane; j < columns; j += t.lanes) square += (x[first + j] - middle) * (x[first + j] - middle);
    const float by = 1 / sqrtf(t.sum(square) / static_cast<float>(columns) + 1e-5f);
    if (t.lane == 0) {
      mean[row] = middle;
      scale[row] = by;
    }
    for (int j = t.lane; j < columns; j += t.lanes)
      put((x[first + j] - middle) * by * gain[j] + (bias ? bias[j] : 0), y[first + j]);
  }
};
/// `more`: added to what comes out.
struct norm_backward {
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int row, int columns, bool centred, const float* dy, const float* gain,
                             const float* x, const float* mean, const float* scale, const float* more, float* dx) const {
    const int first = row * columns;
    const float middle = mean[row], by = scale[row];
    float along = 0, level = 0;
    for (int j = t.lane; j < columns; j += t.lanes) {
      const float d = dy[first + j] * gain[j];
      along += d * ((x[first + j] - middle) * by);
      level += d;
    }
    along = t.sum(along) / static_cast<float>(columns);
    level = centred ? t.sum(level) / static_cast<float>(columns) : 0;
    for (int j = t.lane; j < columns; j += t.lanes) {
      const float unit = (x[first + j] - middle) * by;
      dx[first + j] = (dy[first + j] * gain[j] - level - unit * along) * by + (more ? more[first + j] : 0);
    }
  }
};

/// GELU in its tanh form, or SwiGLU, whose second half of `up` is the factor; rows x columns of what comes out. `bias`: still to
/// be added to `up`; null: none.
struct activate {
  static constexpr float slope = 0.7978845608028654f, bend = 0.044715f;  // sqrt(2 / pi)
  [[nodiscard]] GPT_KERNEL static float sigmoid(bool gated, float x) {
    return 1 / (1 + expf(gated ? -x : x * (-2 * slope - 2 * slope * bend * x * x)));
  }
  [[nodiscard]] GPT_KERNEL static float gelu(float x) { return x * sigmoid(false, x); }
  /// d times GELU's slope at x.
  [[nodiscard]] GPT_KERNEL static float gelu_backward(float x, float d) {
    const float s = sigmoid(false, x);
    return d * s * (1 + x * (1 - s) * (2 * slope + 6 * slope * bend * x * x));
  }
  template <class Real>
  GPT_KERNEL void operator()(int i, int columns, bool gated, const Real* up, const float* bias, Real* active) const {
    const int j = i % columns, wide = gated ? 2 * columns : columns, at = i / columns * wide + j;
    const float x = to_float(up[at]) + (bias ? bias[j] : 0), through = x * sigmoid(gated, x);
    put(gated ? through * (to_float(up[at + columns]) + (bias ? bias[j + columns] : 0)) : through, active[i]);
  }
};
struct activate_backward {
  template <class Real>
  GPT_KERNEL void operator()(int i, int columns, bool gated, const Real* up, const float* bias, const Real* dactive,
                             Real* dup) const {
    const int j = i % columns, wide = gated ? 2 * columns : columns, at = i / columns * wide + j;
    const float x = to_float(up[at]) + (bias ? bias[j] : 0), d = to_float(dactive[i]);
    if (gated) {
      const float s = activate::sigmoid(true, x);
      const float by = to_float(up[at + columns]) + (bias ? bias[j + columns] : 0);
      put(d * by * s * (1 + x * (1 - s)), dup[at]);
      put(d * x * s, dup[at + columns]);
    } else {
      put(activate::gelu_backward(x, d), dup[at]);
    }
  }
};

/// Which part of every sample's sequence the rows are.
struct sequence_part {
  int length = 0, first = 0;
  [[nodiscard]] GPT_KERNEL int position(int row) const { return first + row % length; }
};
/// Turns pair i of rows x heads x half: see gpt::rotary; direction -1 turns back.
struct turn_pair {
  template <class Real>
  GPT_KERNEL void operator()(int i, int heads, int half, int columns, sequence_part part, float direction, const float* cosine,
                             const float* sine, Real* x) const {
    const int pair = i % half, head = i / half % heads, row = i / half / heads, at = row * columns + head * 2 * half + pair;
    const int turn = part.position(row) * half + pair;
    const float c = cosine[turn], s = direction * sine[turn];
    const float a = to_float(x[at]), b = to_float(x[at + half]);
    put(a * c - b * s, x[at]);
    put(a * s + b * c, x[at + half]);
  }
};

/// How rows of queries, keys and values lie, and which see which. Those of a rank of a context axis are a slice of every
/// sequence: keys and values, of whole sequences, are then rows of their own, without queries.
struct attention_shape {
  int sequence = 0, heads = 0, kv_heads = 0, size = 0;
  int keys = 0;            ///< rows of a sample that are keys; 0: the same as those of queries
  int first_position = 0;  ///< of the queries, among them
  [[nodiscard]] GPT_KERNEL int columns() const { return (heads + 2 * kv_heads) * size; }
  [[nodiscard]] GPT_KERNEL int key_columns() const { return keys > 0 ? 2 * kv_heads * size : columns(); }
  [[nodiscard]] GPT_KERNEL int key_rows() const { return keys > 0 ? keys : sequence; }  ///< of a sample
  [[nodiscard]] GPT_KERNEL int query(int row, int head) const { return row * columns() + head * size; }
  [[nodiscard]] GPT_KERNEL int key(int row, int head) const { return kv_key(row, head * kv_heads / heads); }
  [[nodiscard]] GPT_KERNEL int kv_key(int row, int kv_head) const {
    return row * key_columns() + (keys > 0 ? kv_head : heads + kv_head) * size;
  }
  [[nodiscard]] GPT_KERNEL int value(int row, int head) const { return key(row, head) + kv_heads * size; }
  [[nodiscard]] GPT_KERNEL int mixed(int row, int head) const { return (row * heads + head) * size; }
  /// Key that a row of queries sees first, and how many it sees.
  [[nodiscard]] GPT_KERNEL int first(int row) const { return row / sequence * key_rows(); }
  [[nodiscard]] GPT_KERNEL int seen(int row) const { return first_position + row % sequence + 1; }
  /// Rows of queries that see a key: from the first to before the last.
  [[nodiscard]] GPT_KERNEL int first_seeing(int key) const {
    return key / key_rows() * sequence + first_seeing_in_sample(key % key_rows());
  }
  [[nodiscard]] GPT_KERNEL int first_seeing_in_sample(int key) const { return key > first_position ? key - first_position : 0; }
  [[nodiscard]] GPT_KERNEL int last_seeing(int key) const { return (key / key_rows() + 1) * sequence; }
  [[nodiscard]] GPT_KERNEL float scale() const { return 1 / sqrtf(static_cast<float>(size)); }
};

// Attention that keeps no weights: of each row and head only the log of the softmax's denominator, of which a backward makes them
// again (Dao et al. 2022). A GPU has these below for heads of any width, and flash.cuh for those of the usual ones.

/// Numbers of a head that a lane has: a part of them at a time, if it is the only lane.
struct head_part {
  static constexpr int most = 128;
  int first, last, lanes;
  template <class Team>
  GPT_KERNEL head_part(const Team& t, int begin, int size)
      : first(begin + t.lane), last(begin + t.lanes * most < size ? begin + t.lanes * most : size), lanes(t.lanes) {}
  /// body(number of the head, which of this lane's)
  template <class Body>
  GPT_KERNEL void each(const Body& body) const {
    for (int d = first, k = 0; d < last; d += lanes, ++k) body(d, k);
  }
};
template <class Team, class Real>
[[nodiscard]] GPT_KERNEL inline float dot(const Team& t, int size, const Real* a, const Real* b) {
  float sum = 0;
  for (int d = t.lane; d < size; d += t.lanes) sum += to_float(a[d]) * to_float(b[d]);
  return t.sum(sum);
}
/// Of index row * heads + head, here and below. `kv`: of a context axis, whose keys and values lie by themselves.
struct attention_forward {
  template <class Team, class Real>
  GPT_KERNEL void operator()(const Team& t, int index, attention_shape s, const Real* qkv, Real* mixed, float* logs) const {
    (*this)(t, index, s, qkv, qkv, mixed, logs);
  }
  template <class Team, class Real>
  GPT_KERNEL void operator()(const Team& t, int index, attention_shape s, const Real* qkv, const Real* kv, Real* mixed,
                             float* logs) const {
    const int row = index / s.heads, head = index % s.heads, seen = s.seen(row), first = s.first(row);
    for (int begin = 0; begin < s.size; begin += t.lanes * head_part::most) {
      const head_part part(t, begin, s.size);
      float own[head_part::most] = {}, most = -INFINITY, sum = 0;
      for (int j = 0; j < seen; ++j) {
        const float score = dot(t, s.size, qkv + s.query(row, head), kv + s.key(first + j, head)) * s.scale();
        const float next = fmaxf(most, score), keep = expf(most - next), weight = expf(score - next);
        const Real* const v = kv + s.value(first + j, head);
        part.each([&](int d, int k) { own[k] = own[k] * keep + weight * to_float(v[d]); });
        sum = sum * keep + weight;
        most = next;
      }
      part.each([&](int d, int k) { put(own[k] / sum, mixed[s.mixed(row, head) + d]); });
      if (t.lane == 0) logs[index] = most + logf(sum);
    }
  }
};
/// `along`: of each row and head, the product of what came out and its gradient.
struct attention_queries_backward {
  template <class Team, class Real>
  GPT_KERNEL void operator()(const Team& t, int index, attention_shape s, const Real* qkv, const Real* mixed, const Real* dmixed,
                             const float* logs, float* along, Real* dqkv) const {
    (*this)(t, index, s, qkv, qkv, mixed, dmixed, logs, along, dqkv);
  }
  template <class Team, class Real>
  GPT_KERNEL void operator()(const Team& t, int index, attention_shape s, const Real* qkv, const Real* kv, const Real* mixed,
                             const Real* dmixed, const float* logs, float* along, Real* dqkv) const {
    const int row = index / s.heads, head = index % s.heads, seen = s.seen(row), first = s.first(row);
    const Real *const q = qkv + s.query(row, head), *const dm = dmixed + s.mixed(row, head);
    const float mean = dot(t, s.size, dm, mixed + s.mixed(row, head));
    if (t.lane == 0) along[index] = mean;
    for (int begin = 0; begin < s.size; begin += t.lanes * head_part::most) {
      const head_part part(t, begin, s.size);
      float own[head_part::most] = {};
      for (int j = 0; j < seen; ++j) {
        const Real* const key = kv + s.key(first + j, head);
        const float weight = expf(dot(t, s.size, q, key) * s.scale() - logs[index]);
        const float slope = weight * (dot(t, s.size, dm, kv + s.value(first + j, head)) - mean);
        part.each([&](int d, int k) { own[k] += slope * to_float(key[d]); });
      }
      part.each([&](int d, int k) { put(own[k] * s.scale(), dqkv[s.query(row, head) + d]); });
    }
  }
};
/// Of keys and values, behind those of queries: index row * kv_heads + kv_head.
struct attention_keys_backward {
  template <class Team, class Real>
  GPT_KERNEL void operator()(const Team& t, int index, attention_shape s, const Real* qkv, const Real* dmixed, const float* logs,
                             const float* along, Real* dqkv) const {
    (*this)(t, index, s, qkv, qkv, dmixed, logs, along, dqkv);
  }
  template <class Team, class Real, class Sum>
  GPT_KERNEL void operator()(const Team& t, int index, attention_shape s, const Real* qkv, const Real* kv, const Real* dmixed,
                             const float* logs, const float* along, Sum* dkv) const {
    const int row = index / s.kv_heads, kv_head = index % s.kv_heads, shared = s.heads / s.kv_heads;
    const int end = s.last_seeing(row), key = s.kv_key(row, kv_head), value = key + s.kv_heads * s.size;
    for (int begin = 0; begin < s.size; begin += t.lanes * head_part::most) {
      const head_part part(t, begin, s.size);
      float dkey[head_part::most] = {}, dvalue[head_part::most] = {};
      for (int head = kv_head * shared; head < (kv_head + 1) * shared; ++head)
        for (int r = s.first_seeing(row); r < end; ++r) {
          const Real *const q = qkv + s.query(r, head), *const dm = dmixed + s.mixed(r, head);
          const float weight = expf(dot(t, s.size, q, kv + key) * s.scale() - logs[r * s.heads + head]);
          const float slope = weight * (dot(t, s.size, dm, kv + value) - along[r * s.heads + head]);
          part.each([&](int d, int k) {
            dkey[k] += slope * to_float(q[d]);
            dvalue[k] += weight * to_float(dm[d]);
          });
        }
      part.each([&](int d, int k) {
        put(dkey[k] * s.scale(), dkv[key + d]);
        put(dvalue[k], dkv[value + d]);
      });
    }
  }
};
/// Columns of a wider matrix, from `first` on; element i of them.
struct take_columns {
  template <class Real>
  GPT_KERNEL void operator()(int i, int columns, int first, int all, const Real* x, Real* y) const {
    y[i] = x[i / columns * all + first + i % columns];
  }
};
struct put_columns {
  template <class Real>
  GPT_KERNEL void operator()(int i, int columns, int first, int all, const float* x, Real* y) const {
    put(x[i], y[i / columns * all + first + i % columns]);
  }
};

/// Element i of rows x columns; positions: null if there are none.
struct look_up {
  GPT_KERNEL void operator()(int i, int columns, sequence_part part, const float* tokens, const float* table,
                             const float* positions, float* y) const {
    const int row = i / columns, j = i % columns;
    y[i] = table[static_cast<int>(tokens[row]) * columns + j] + (positions ? positions[part.position(row) * columns + j] : 0);
  }
};
/// Of a row that is the first with its token, which adds up all rows that have it, in their order.
struct look_up_backward {
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int row, int rows, int columns, const float* tokens, const float* dy,
                             float* dtable) const {
    const float token = tokens[row];
    const auto found = [&](int r) { return r < rows && tokens[r] == token ? 1.0f : 0.0f; };
    for (int r = 0; r < row; r += t.lanes)
      if (t.most(r + t.lane < row ? found(r + t.lane) : 0) > 0) return;
    float* const sum = dtable + static_cast<std::int64_t>(token) * columns;
    for (int begin = row; begin < rows; begin += t.lanes) {
      if (t.most(found(begin + t.lane)) == 0) continue;
      for (int r = begin; r < begin + t.lanes; ++r)
        if (found(r) > 0)
          for (int j = t.lane; j < columns; j += t.lanes) sum[j] += dy[r * columns + j];
    }
  }
};
/// Of element i of a rank's positions.
struct positions_backward {
  GPT_KERNEL void operator()(int i, int rows, int columns, sequence_part part, const float* dy, float* dpositions) const {
    float sum = 0;
    for (int r = i / columns; r < rows; r += part.length) sum += dy[r * columns + i % columns];
    dpositions[part.first * columns + i] += sum;
  }
};

/// Slices of every sample's sequence, between the order of samples and that of the ranks that have them; element i of the former.
struct slices_by_rank {
  int columns = 0, samples = 0, ranks = 0, length = 0;
  [[nodiscard]] GPT_KERNEL int at(int i) const {
    const int row = i / columns, sample = row / (ranks * length), rank = row / length % ranks;
    return ((rank * samples + sample) * length + row % length) * columns + i % columns;
  }
};
struct to_samples {
  template <class Real>
  GPT_KERNEL void operator()(int i, slices_by_rank s, const Real* by_rank, Real* y) const {
    y[i] = by_rank[s.at(i)];
  }
};
struct to_ranks {
  GPT_KERNEL void operator()(int i, slices_by_rank s, const float* x, float* by_rank) const { by_rank[s.at(i)] = x[i]; }
};

/// See gpt::cross_entropy_part: the gradient is written over the logits. `losses`: of the rows, not yet times the share.
struct cross_entropy_row {
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int row, int columns, float share, const float* targets, float* logits,
                             float* losses) const {
    const int target = static_cast<int>(targets[row]);
    float* const x = logits + static_cast<std::int64_t>(row) * columns;
    float own = -INFINITY, sum = 0, wanted = 0;  // of what this lane has seen
    for (int j = t.lane; j < columns; j += t.lanes) {
      const float here = x[j];
      if (j == target) wanted = here;
      if (here > own) {
        sum *= expf(own - here);
        own = here;
      }
      sum += expf(here - own);
    }
    const float most = t.most(own);
    sum = t.sum(sum > 0 ? sum * expf(own - most) : sum);
    wanted = t.sum(wanted);
    const float by = share / sum;
    for (int j = t.lane; j < columns; j += t.lanes) x[j] = expf(x[j] - most) * by - (j == target ? share : 0);
    if (t.lane == 0) losses[row] = logf(sum) + most - wanted;
  }
};
/// One team: the sum has one order.
struct sum_losses {
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int, int rows, int all_rows, const float* losses, double* loss) const {
    double sum = 0;
    for (int r = t.lane; r < rows; r += t.lanes) sum += static_cast<double>(losses[r]);
    sum = t.sum(sum);
    if (t.lane == 0) *loss = sum / all_rows;
  }
};

/// Elements of a tensor: rows that begin `stride` apart.
struct runs {
  int first = 0, stride = 0, length = 0, rows = 1;
  [[nodiscard]] GPT_KERNEL int count() const { return length * rows; }
  [[nodiscard]] GPT_KERNEL int at(int k) const { return first + k / length * stride + k % length; }
};

// A sum of squares with the same bits however elements are cut into pieces and lanes, as hetsched::detail::square_sum has it:
// the largest square tells two digits of 48 bits, of which every square has whole numbers; halves of them add up exactly.
struct square_digits {
  static constexpr int each = 8192;  ///< elements of a piece
  static constexpr int width = 48, lowest = -19;
  /// Of the digit that the largest number's square is in.
  [[nodiscard]] GPT_KERNEL static int digit_of(float largest) {
    int exponent = 0;
    (void)frexp(static_cast<double>(largest) * static_cast<double>(largest), &exponent);
    const int digit = (exponent + 100 * width) / width - 100;
    return largest == 0 || digit < lowest ? lowest : digit;
  }
};
/// Of piece i.
struct largest_number {
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int i, const runs& r, const float* x, float* largest) const {
    float most = 0;
    const int end = r.count() - i * square_digits::each;
    for (int k = t.lane; k < end && k < square_digits::each; k += t.lanes)
      most = fmaxf(most, fabsf(x[r.at(i * square_digits::each + k)]));
    most = t.most(most);
    if (t.lane == 0) largest[i] = most;
  }
};
/// Of all pieces, behind them.
struct largest_of_all {
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int, int pieces, const float* largest, float* most) const {
    float all = 0;
    for (int k = t.lane; k < pieces; k += t.lanes) all = fmaxf(all, largest[k]);
    all = t.most(all);
    if (t.lane == 0) *most = all;
  }
};
/// Of piece i, four sums: upper and lower half of the upper digit, and of the lower one.
struct sum_digits {
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int i, const runs& r, const float* x, const float* most, double* sums) const {
    constexpr double half = 1 << 24;
    const int top = square_digits::digit_of(*most), width = square_digits::width;
    const bool has_lower = top > square_digits::lowest;
    const double magic0 = ldexp(1.5, 52 + width * top), magic1 = has_lower ? ldexp(1.5, 52 + width * (top - 1)) : 0;
    const double unit0 = ldexp(1.0, -width * top), unit1 = ldexp(1.0, -width * (top - 1));
    double own[4] = {0, 0, 0, 0};
    const int end = r.count() - i * square_digits::each;
    for (int k = t.lane; k < end && k < square_digits::each; k += t.lanes) {
      const auto number = static_cast<double>(x[r.at(i * square_digits::each + k)]);
      const double square = number * number;
      const double whole = (square + magic0) - magic0, rest = square - whole;
      const double digits[2] = {whole * unit0, has_lower ? ((rest + magic1) - magic1) * unit1 : 0};
      for (int d = 0; d < 2; ++d) {
        const double high = floor(digits[d] / half);
        own[2 * d] += high;
        own[2 * d + 1] += digits[d] - high * half;
      }
    }
    for (int d = 0; d < 4; ++d) {
      const double sum = t.sum(own[d]);
      if (t.lane == 0) sums[4 * i + d] = sum;
    }
  }
};
/// Of all pieces: what square_sum::append tells.
struct tell_digits {
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int, int pieces, const float* most, const double* sums, double* told) const {
    bool finite = *most < INFINITY;
    for (int d = 0; d < 4; ++d) {
      double own = 0;
      for (int k = t.lane; k < pieces; k += t.lanes) own += sums[4 * k + d];
      own = t.sum(own);
      finite = finite && own - own == 0;
      if (t.lane == 0) told[1 + d] = finite ? own : 0;
    }
    if (t.lane == 0) told[0] = finite ? square_digits::digit_of(*most) : static_cast<double>(INFINITY);
  }
};

// Of blocks with experts: a row goes to `chosen` of them, and has a place for each among rows that lie expert by expert.

/// In place.
struct softmax_row {
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int row, int columns, float* scores) const {
    float* const x = scores + row * columns;
    float most = -INFINITY, sum = 0;
    for (int j = t.lane; j < columns; j += t.lanes) most = fmaxf(most, x[j]);
    most = t.most(most);
    for (int j = t.lane; j < columns; j += t.lanes) sum += x[j] = expf(x[j] - most);
    sum = t.sum(sum);
    for (int j = t.lane; j < columns; j += t.lanes) x[j] /= sum;
  }
};
/// `slopes`, of the chances, become those of the scores.
struct softmax_row_backward {
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int row, int columns, const float* chances, float* slopes) const {
    float along = 0;
    for (int j = row * columns + t.lane; j < (row + 1) * columns; j += t.lanes) along += chances[j] * slopes[j];
    along = t.sum(along);
    for (int j = row * columns + t.lane; j < (row + 1) * columns; j += t.lanes) slopes[j] = chances[j] * (slopes[j] - along);
  }
};
/// Row i of y is row rows[i] of x.
struct take_rows {
  template <class Real>
  GPT_KERNEL void operator()(int i, int columns, const int* rows, const Real* x, Real* y) const {
    y[i] = x[rows[i / columns] * columns + i % columns];
  }
};
/// Row rows[i] of y is row i of x.
struct put_rows {
  template <class Real>
  GPT_KERNEL void operator()(int i, int columns, const int* rows, const Real* x, Real* y) const {
    y[rows[i / columns] * columns + i % columns] = x[i];
  }
};
/// Each row the bias of its expert.
struct add_expert_bias {
  template <class Real>
  GPT_KERNEL void operator()(int i, int columns, const int* expert, const float* bias, Real* y) const {
    put(to_float(y[i]) + bias[expert[i / columns] * columns + i % columns], y[i]);
  }
};
/// `experts`, `places`: of each row, those that it has, in the order of the experts.
struct mix_answers {
  template <class Real>
  GPT_KERNEL void operator()(int i, int columns, int chosen, int all_experts, const int* experts, const int* places,
                             const float* chances, const Real* answers, float* sum) const {
    const int row = i / columns, j = i % columns;
    float mixed = 0;
    for (int k = row * chosen; k < (row + 1) * chosen; ++k)
      mixed += chances[row * all_experts + experts[k]] * to_float(answers[places[k] * columns + j]);
    sum[i] = mixed;
  }
};
/// What the gradients of a row's inputs add up to.
struct add_asked {
  template <class Real>
  GPT_KERNEL void operator()(int i, int columns, int chosen, const int* places, const Real* asked, float* sum) const {
    for (int k = i / columns * chosen; k < (i / columns + 1) * chosen; ++k)
      sum[i] += to_float(asked[places[k] * columns + i % columns]);
  }
};
/// Of place i, with its row and expert: the gradient of its answer, and of its chance.
struct answers_backward {
  template <class Team, class Real>
  GPT_KERNEL void operator()(const Team& t, int i, int columns, int all_experts, const int* rows, const int* experts,
                             const float* chances, const Real* answers, const float* wanted, float* slopes, Real* asked) const {
    const int row = rows[i], at = row * all_experts + experts[i];
    float along = 0;
    for (int j = t.lane; j < columns; j += t.lanes) {
      along += to_float(answers[i * columns + j]) * wanted[row * columns + j];
      put(chances[at] * wanted[row * columns + j], asked[i * columns + j]);
    }
    along = t.sum(along);
    if (t.lane == 0) slopes[at] = along;
  }
};

/// See hetsched::adamw; the master weights are p.
struct adamw_update {
  float beta1, rest1, beta2, rest2, keep, rate, unbias, epsilon;
  GPT_KERNEL void operator()(int i, const float* gradient, float* m, float* v, float* p) const {
    const float g = gradient[i];
    m[i] = beta1 * m[i] + rest1 * g;
    v[i] = beta2 * v[i] + rest2 * g * g;
    p[i] = keep * p[i] - rate * m[i] / (sqrtf(v[i]) * unbias + epsilon);
  }
};
/// See hetsched::sgd; v is null without momentum, and there is no other state.
struct sgd_update {
  float rate, momentum, decay;
  bool nesterov;
  GPT_KERNEL void operator()(int i, const float* gradient, float* v, const float*, float* p) const {
    const float slope = gradient[i] + decay * p[i];
    float step = slope;
    if (v) {
      v[i] = momentum * v[i] + slope;
      step = nesterov ? slope + momentum * v[i] : v[i];
    }
    p[i] -= rate * step;
  }
};

/// Tensors that one kernel updates, in pieces of `each` numbers; what kernels take as arguments is at most 4 KiB.
struct update_table {
  static constexpr int most = 80, each = 1024;
  struct entry {
    const float* gradient;
    float *first, *second, *value;  ///< first, second: the optimizer's state, or null
    bf16* rounded;                  ///< what products take of the value; or null
    int size, last = 0;             ///< last: pieces of the tensors up to and with this one
  };
  entry entries[most] = {};
  int count = 0;

  void add(entry e) {
    e.last = pieces() + (e.size + each - 1) / each;
    entries[count++] = e;
  }
  [[nodiscard]] int pieces() const { return count == 0 ? 0 : entries[count - 1].last; }
  /// visit(pointer&, how many numbers) for all.
  template <class Visit>
  void visit_memory(const Visit& visit) {
    for (int k = 0; k < count; ++k) {
      auto& e = entries[k];
      visit(e.gradient, e.size), visit(e.first, e.size), visit(e.second, e.size), visit(e.value, e.size),
          visit(e.rounded, e.size);
    }
  }
};
static_assert(sizeof(update_table) + 64 <= 4096);
/// Of a piece, with the optimizer's update of one number.
template <class Update>
struct update_all {
  Update own;
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int piece, const update_table& table) const {
    int low = 0, high = table.count - 1;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (table.entries[middle].last > piece)
        high = middle;
      else
        low = middle + 1;
    }
    const auto& e = table.entries[low];
    const int first = (piece - (low > 0 ? table.entries[low - 1].last : 0)) * update_table::each;
    const int rest = e.size - first, end = first + (rest < update_table::each ? rest : update_table::each);
    for (int i = first + t.lane; i < end; i += t.lanes) {
      own(i, e.gradient, e.first, e.second, e.value);
      if (e.rounded) e.rounded[i] = to_bf16(e.value[i]);
    }
  }
};

}  // namespace gpt_cuda
