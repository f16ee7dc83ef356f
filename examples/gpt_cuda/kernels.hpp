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
  GPT_KERNEL void operator()(int i, const float* term, float* sum) const { sum[i] += term[i]; }
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
struct copy_numbers {
  GPT_KERNEL void operator()(int i, const float* x, float* y) const { y[i] = x[i]; }
};

struct add_bias {
  GPT_KERNEL void operator()(int i, int columns, const float* bias, float* y) const { y[i] += bias[i % columns]; }
};
/// Of column j; `sum` gets more.
struct sum_column {
  GPT_KERNEL void operator()(int j, int rows, int columns, const float* x, float* sum) const {
    float all = 0;
    for (int r = 0; r < rows; ++r) all += x[r * columns + j];
    sum[j] += all;
  }
};

/// `unit`: rows before gain and bias; `scale`: 1 / deviation of each. Without a bias: the root mean square's norm.
struct norm_forward {
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int row, int columns, const float* x, const float* gain, const float* bias,
                             float* unit, float* scale, float* y) const {
    const int first = row * columns;
    float mean = 0, square = 0;
    if (bias) {
      for (int j = t.lane; j < columns; j += t.lanes) mean += x[first + j];
      mean = t.sum(mean) / static_cast<float>(columns);
    }
    for (int j = t.lane; j < columns; j += t.lanes) square += (x[first + j] - mean) * (x[first + j] - mean);
    const float by = 1 / sqrtf(t.sum(square) / static_cast<float>(columns) + 1e-5f);
    if (t.lane == 0) scale[row] = by;
    for (int j = t.lane; j < columns; j += t.lanes) {
      const float u = (x[first + j] - mean) * by;
      unit[first + j] = u;
      y[first + j] = u * gain[j] + (bias ? bias[j] : 0);
    }
  }
};
struct norm_backward {
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int row, int columns, bool centred, const float* dy, const float* gain,
                             const float* unit, const float* scale, float* dx) const {
    const int first = row * columns;
    float along = 0, mean = 0;
    for (int j = t.lane; j < columns; j += t.lanes) {
      const float d = dy[first + j] * gain[j];
      along += d * unit[first + j];
      mean += d;
    }
    along = t.sum(along) / static_cast<float>(columns);
    mean = centred ? t.sum(mean) / static_cast<float>(columns) : 0;
    for (int j = t.lane; j < columns; j += t.lanes)
      dx[first + j] = (dy[first + j] * gain[j] - mean - unit[first + j] * along) * scale[row];
  }
};
/// Of column j.
struct norm_gain_backward {
  GPT_KERNEL void operator()(int j, int rows, int columns, const float* dy, const float* unit, float* dgain) const {
    float sum = 0;
    for (int r = 0; r < rows; ++r) sum += dy[r * columns + j] * unit[r * columns + j];
    dgain[j] += sum;
  }
};

/// GELU in its tanh form, or SwiGLU, whose second half of `up` is the factor; rows x columns of what comes out.
struct activate {
  static constexpr float slope = 0.7978845608028654f, bend = 0.044715f;  // sqrt(2 / pi)
  GPT_KERNEL void operator()(int i, int columns, bool gated, const float* up, float* sigmoid, float* active) const {
    const int wide = gated ? 2 * columns : columns, at = i / columns * wide + i % columns;
    const float x = up[at];
    const float s = 1 / (1 + expf(gated ? -x : x * (-2 * slope - 2 * slope * bend * x * x)));
    sigmoid[i] = s;
    active[i] = gated ? x * s * up[at + columns] : x * s;
  }
};
struct activate_backward {
  GPT_KERNEL void operator()(int i, int columns, bool gated, const float* up, const float* sigmoid, const float* dactive,
                             float* dup) const {
    const int wide = gated ? 2 * columns : columns, at = i / columns * wide + i % columns;
    const float x = up[at], s = sigmoid[i], d = dactive[i];
    if (gated) {
      dup[at] = d * up[at + columns] * s * (1 + x * (1 - s));
      dup[at + columns] = d * x * s;
    } else {
      dup[at] = d * s * (1 + x * (1 - s) * (2 * activate::slope + 6 * activate::slope * activate::bend * x * x));
    }
  }
};

/// Turns pair i of rows x heads x half: see gpt::rotary; direction -1 turns back.
struct turn_pair {
  GPT_KERNEL void operator()(int i, int heads, int half, int columns, int sequence, float direction, const float* cosine,
                             const float* sine, float* x) const {
    const int pair = i % half, head = i / half % heads, row = i / half / heads, at = row * columns + head * 2 * half + pair;
    const float c = cosine[row % sequence * half + pair], s = direction * sine[row % sequence * half + pair];
    const float a = x[at], b = x[at + half];
    x[at] = a * c - b * s;
    x[at + half] = a * s + b * c;
  }
};

/// How rows of queries, keys and values lie, and which see which.
struct attention_shape {
  int sequence = 0, heads = 0, kv_heads = 0, size = 0;
  [[nodiscard]] GPT_KERNEL int columns() const { return (heads + 2 * kv_heads) * size; }
  [[nodiscard]] GPT_KERNEL int query(int row, int head) const { return row * columns() + head * size; }
  [[nodiscard]] GPT_KERNEL int key(int row, int head) const { return row * columns() + (heads + head * kv_heads / heads) * size; }
  [[nodiscard]] GPT_KERNEL int value(int row, int head) const { return key(row, head) + kv_heads * size; }
  [[nodiscard]] GPT_KERNEL int mixed(int row, int head) const { return (row * heads + head) * size; }
  /// Of what a row's head sees, by position in its sample.
  [[nodiscard]] GPT_KERNEL std::int64_t weights(int row, int head) const {
    return (static_cast<std::int64_t>(row) * heads + head) * sequence;
  }
  [[nodiscard]] GPT_KERNEL int first(int row) const { return row - row % sequence; }
  [[nodiscard]] GPT_KERNEL float scale() const { return 1 / sqrtf(static_cast<float>(size)); }
};
/// The softmax of the scores of one row and head: index row * heads + head, here and below.
struct attention_weights {
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int index, attention_shape s, const float* qkv, float* weights) const {
    const int row = index / s.heads, head = index % s.heads, seen = row % s.sequence + 1, first = s.first(row);
    const float* const q = qkv + s.query(row, head);
    float* const w = weights + s.weights(row, head);
    float most = -INFINITY, sum = 0;
    for (int j = t.lane; j < seen; j += t.lanes) {
      const float* const k = qkv + s.key(first + j, head);
      float score = 0;
      for (int d = 0; d < s.size; ++d) score += q[d] * k[d];
      w[j] = score * s.scale();
      most = fmaxf(most, w[j]);
    }
    most = t.most(most);
    for (int j = t.lane; j < seen; j += t.lanes) {
      w[j] = expf(w[j] - most);
      sum += w[j];
    }
    sum = t.sum(sum);
    for (int j = t.lane; j < seen; j += t.lanes) w[j] /= sum;
  }
};
struct attention_mix {
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int index, attention_shape s, const float* qkv, const float* weights,
                             float* mixed) const {
    const int row = index / s.heads, head = index % s.heads, seen = row % s.sequence + 1, first = s.first(row);
    const float* const w = weights + s.weights(row, head);
    for (int d = t.lane; d < s.size; d += t.lanes) {
      float sum = 0;
      for (int j = 0; j < seen; ++j) sum += w[j] * qkv[s.value(first + j, head) + d];
      mixed[s.mixed(row, head) + d] = sum;
    }
  }
};
/// The gradient of the scores.
struct attention_scores_backward {
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int index, attention_shape s, const float* qkv, const float* weights,
                             const float* dmixed, float* dscores) const {
    const int row = index / s.heads, head = index % s.heads, seen = row % s.sequence + 1, first = s.first(row);
    const float* const w = weights + s.weights(row, head);
    const float* const dm = dmixed + s.mixed(row, head);
    float* const ds = dscores + s.weights(row, head);
    float along = 0;
    for (int j = t.lane; j < seen; j += t.lanes) {
      const float* const v = qkv + s.value(first + j, head);
      float d = 0;
      for (int k = 0; k < s.size; ++k) d += dm[k] * v[k];
      ds[j] = d;
      along += w[j] * d;
    }
    along = t.sum(along);
    for (int j = t.lane; j < seen; j += t.lanes) ds[j] = w[j] * (ds[j] - along) * s.scale();
  }
};
struct attention_queries_backward {
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int index, attention_shape s, const float* qkv, const float* dscores,
                             float* dqkv) const {
    const int row = index / s.heads, head = index % s.heads, seen = row % s.sequence + 1, first = s.first(row);
    const float* const ds = dscores + s.weights(row, head);
    for (int d = t.lane; d < s.size; d += t.lanes) {
      float sum = 0;
      for (int j = 0; j < seen; ++j) sum += ds[j] * qkv[s.key(first + j, head) + d];
      dqkv[s.query(row, head) + d] = sum;
    }
  }
};
/// Of keys and values: index row * kv_heads + kv_head.
struct attention_keys_backward {
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int index, attention_shape s, const float* qkv, const float* weights,
                             const float* dscores, const float* dmixed, float* dqkv) const {
    const int row = index / s.kv_heads, kv_head = index % s.kv_heads, shared = s.heads / s.kv_heads;
    const int position = row % s.sequence, end = s.first(row) + s.sequence;
    for (int d = t.lane; d < s.size; d += t.lanes) {
      float dkey = 0, dvalue = 0;
      for (int head = kv_head * shared; head < (kv_head + 1) * shared; ++head)
        for (int r = row; r < end; ++r) {
          const auto at = s.weights(r, head) + position;
          dkey += dscores[at] * qkv[s.query(r, head) + d];
          dvalue += weights[at] * dmixed[s.mixed(r, head) + d];
        }
      const int key = row * s.columns() + (s.heads + kv_head) * s.size + d;
      dqkv[key] = dkey;
      dqkv[key + s.kv_heads * s.size] = dvalue;
    }
  }
};

/// Which part of every sample's sequence the rows are.
struct sequence_part {
  int length = 0, first = 0;
  [[nodiscard]] GPT_KERNEL int position(int row) const { return first + row % length; }
};
/// Element i of rows x columns; positions: null if there are none.
struct look_up {
  GPT_KERNEL void operator()(int i, int columns, sequence_part part, const float* tokens, const float* table,
                             const float* positions, float* y) const {
    const int row = i / columns, j = i % columns;
    y[i] = table[static_cast<int>(tokens[row]) * columns + j] + (positions ? positions[part.position(row) * columns + j] : 0);
  }
};
/// Of column j: rows that have the same token follow each other.
struct look_up_backward {
  GPT_KERNEL void operator()(int j, int rows, int columns, sequence_part part, const float* tokens, const float* dy,
                             float* dtable, float* dpositions) const {
    for (int r = 0; r < rows; ++r) {
      dtable[static_cast<int>(tokens[r]) * columns + j] += dy[r * columns + j];
      if (dpositions) dpositions[part.position(r) * columns + j] += dy[r * columns + j];
    }
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
  GPT_KERNEL void operator()(int i, slices_by_rank s, const float* by_rank, float* y) const { y[i] = by_rank[s.at(i)]; }
};
struct to_ranks {
  GPT_KERNEL void operator()(int i, slices_by_rank s, const float* x, float* by_rank) const { by_rank[s.at(i)] = x[i]; }
};

/// See gpt::cross_entropy_part; `losses`: of the rows, not yet times the share.
struct cross_entropy_row {
  template <class Team>
  GPT_KERNEL void operator()(const Team& t, int row, int columns, float share, const float* logits, const float* targets,
                             float* gradient, float* losses) const {
    const int first = row * columns, target = static_cast<int>(targets[row]);
    float most = -INFINITY, sum = 0;
    for (int j = t.lane; j < columns; j += t.lanes) most = fmaxf(most, logits[first + j]);
    most = t.most(most);
    for (int j = t.lane; j < columns; j += t.lanes) {
      gradient[first + j] = expf(logits[first + j] - most);
      sum += gradient[first + j];
    }
    sum = t.sum(sum);
    for (int j = t.lane; j < columns; j += t.lanes)
      gradient[first + j] = gradient[first + j] * (share / sum) - (j == target ? share : 0);
    if (t.lane == 0) losses[row] = logf(sum) + most - logits[first + target];
  }
};
/// One index: the sum has one order.
struct sum_losses {
  GPT_KERNEL void operator()(int, int rows, int all_rows, const float* losses, double* loss) const {
    double sum = 0;
    for (int r = 0; r < rows; ++r) sum += static_cast<double>(losses[r]);
    *loss = sum / all_rows;
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
/// See hetsched::sgd; v is null without momentum.
struct sgd_update {
  float rate, momentum, decay;
  bool nesterov;
  GPT_KERNEL void operator()(int i, const float* gradient, float* v, float* p) const {
    const float slope = gradient[i] + decay * p[i];
    float step = slope;
    if (v) {
      v[i] = momentum * v[i] + slope;
      step = nesterov ? slope + momentum * v[i] : v[i];
    }
    p[i] -= rate * step;
  }
};

}  // namespace gpt_cuda
