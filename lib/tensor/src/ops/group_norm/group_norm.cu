// dtypes: f32 bf16 f16
// Group normalization of x [batch, cells, channels] and an activation (group_norm/mod.rs).
//
// Sums over the cells of a sample are divided into parts. A block sums a part for a tile of channels: `lanes` threads
// (a power of two, at most 32) side by side with 16 bytes of channels each if their number allows it, otherwise one
// channel; the other threads take other cells. Partial results are per channel; one block per sample and group then
// combines those of its channels and parts in double. Every order is fixed.

#include "activation.cuh"
#include "total.cuh"

constexpr int THREADS = 256;

struct Norm {
  const element* x;
  const element* w;  // null: 1
  const element* b;  // null: 0
  const float* stats;  // μ and r: [batch, groups, 2]
  int cells, channels, groups, activation;
};

// The part of the sums of a sample that a block computes, and the share of this thread.
struct Part {
  int sample, part;
  int begin, end, first, step;  // cells of the part; the first of this thread and the distance to its next
  int lane, channel;
};

// Blocks: batch × parts × tiles, of `rows` cells each.
template <int V>
DEVICE Part part_of_block(int cells, int channels, int lanes, int rows, int parts) {
  int tiles = (channels / V + lanes - 1) / lanes;
  int tile = blockIdx.x % tiles, part = blockIdx.x / tiles % parts;
  int lane = threadIdx.x % lanes, begin = part * rows;
  return {(int)blockIdx.x / tiles / parts, part, begin, min(begin + rows, cells),
          begin + (int)threadIdx.x / lanes, THREADS / lanes, lane, (tile * lanes + lane) * V};
}

// The sums over the threads of a lane, in every thread; `shared` holds V · THREADS floats and can be reused at once.
template <int V>
DEVICE void lane_sums(float (&x)[V], int lanes, int lane, float* shared) {
  int thread = threadIdx.x;
#pragma unroll
  for (int v = 0; v < V; v++) {
    shared[v * THREADS + thread] = x[v];
  }
  for (int half = THREADS / 2; half >= lanes; half /= 2) {
    __syncthreads();
    if (thread < half) {
#pragma unroll
      for (int v = 0; v < V; v++) {
        shared[v * THREADS + thread] += shared[v * THREADS + thread + half];
      }
    }
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < V; v++) {
    x[v] = shared[v * THREADS + lane];
  }
  __syncthreads();
}

// Writes two vectors of partial results [batch, parts, 2, channels].
template <int V>
DEVICE void write_part(float* partials, Part at, int parts, int channels, const float (&first)[V],
                       const float (&second)[V]) {
  if (at.first == at.begin && at.channel < channels) {
    long long row = ((long long)at.sample * parts + at.part) * 2;
    store_floats<V>(partials + row * channels + at.channel, first);
    store_floats<V>(partials + (row + 1) * channels + at.channel, second);
  }
}

// partials: the mean of each channel over a part, and the sum of squared distances from it.
KERNEL(group_norm_moments)(
    const element* __restrict__ x, float* __restrict__ partials, int cells, int channels, int lanes,
    int rows, int parts) {
  SHARED(float, shared, [WIDTH * THREADS]);
  with_width(channels % WIDTH == 0, [&](auto n) {
    constexpr int V = n.value;
    Part at = part_of_block<V>(cells, channels, lanes, rows, parts);
    const element* from = x + (long long)at.sample * cells * channels + at.channel;
    float mean[V] = {}, squares[V] = {};
    if (at.channel < channels) {
      for (int cell = at.first; cell < at.end; cell += at.step) {
        Vector<element, V> values = load_vector<V>(from + (long long)cell * channels);
#pragma unroll
        for (int v = 0; v < V; v++) {
          mean[v] += to_float(values.at[v]);
        }
      }
    }
    lane_sums<V>(mean, lanes, at.lane, shared);
    float share = 1.0f / (float)(at.end - at.begin);
#pragma unroll
    for (int v = 0; v < V; v++) {
      mean[v] *= share;
    }
    if (at.channel < channels) {
      for (int cell = at.first; cell < at.end; cell += at.step) {
        Vector<element, V> values = load_vector<V>(from + (long long)cell * channels);
#pragma unroll
        for (int v = 0; v < V; v++) {
          float d = to_float(values.at[v]) - mean[v];
          squares[v] += d * d;
        }
      }
    }
    lane_sums<V>(squares, lanes, at.lane, shared);
    write_part<V>(partials, at, parts, channels, mean, squares);
  });
}

// Σ f(first, second, part, channel) over the parts and channels of a sample and group, from partials
// [batch, parts, 2, channels]; blocks: batch × groups.
template <class F>
DEVICE double group_total(const float* partials, int channels, int groups, int parts,
                          double* scratch, F f) {
  int sample = blockIdx.x / groups, width = channels / groups, start = blockIdx.x % groups * width;
  return block_total_of(parts * width, scratch, [&](int i) {
    int part = i / width, channel = start + i % width;
    const float* row = partials + ((long long)sample * parts + part) * 2 * channels + channel;
    return f((double)row[0], (double)row[channels], part, channel);
  });
}

// stats: μ and r of each sample and group from the moments of its channels and parts (Chan et al. 1983).
KERNEL(group_norm_statistics, 256)(
    const float* __restrict__ partials, float* __restrict__ stats, int cells, int channels,
    int groups, int rows, int parts, float epsilon) {
  SHARED(double, scratch, [TOTAL_THREADS]);
  double share = 1.0 / ((double)cells * (channels / groups));
  double mean = share * group_total(partials, channels, groups, parts, scratch,
      [&](double part_mean, double, int part, int) {
        return min(rows, cells - part * rows) * part_mean;
      });
  double variance = share * group_total(partials, channels, groups, parts, scratch,
      [&](double part_mean, double squares, int part, int) {
        double d = part_mean - mean;
        return squares + min(rows, cells - part * rows) * d * d;
      });
  if (threadIdx.x == 0) {
    stats[2 * blockIdx.x] = (float)mean;
    stats[2 * blockIdx.x + 1] = 1.0f / sqrtf((float)variance + epsilon);
  }
}

// μ, r, w and b of V adjacent channels of a sample.
template <int V>
struct Coefficients {
  float mean[V], rstd[V], w[V], b[V];
  int group[V];
};

template <int V>
DEVICE Coefficients<V> coefficients(const Norm& norm, int sample, int channel) {
  Coefficients<V> c;
  int width = norm.channels / norm.groups, group = channel / width;
  int left = (group + 1) * width - channel;
#pragma unroll
  for (int v = 0; v < V; v++) {
    if (left == 0) {
      group++;
      left = width;
    }
    left--;
    c.group[v] = sample * norm.groups + group;
    c.mean[v] = norm.stats[2 * c.group[v]];
    c.rstd[v] = norm.stats[2 * c.group[v] + 1];
    c.w[v] = norm.w != nullptr ? to_float(norm.w[channel + v]) : 1.0f;
    c.b[v] = norm.b != nullptr ? to_float(norm.b[channel + v]) : 0.0f;
  }
  return c;
}

// dz = dy f'(z) of a channel, given n.
template <int V>
DEVICE float slope(const Norm& norm, const Coefficients<V>& c, int v, float n, float dy) {
  return norm.activation == IDENTITY
             ? dy
             : dy * activate(norm.activation, fmaf(n, c.w[v], c.b[v])).derivative;
}

// out = f(w ∘ n + b).
KERNEL(group_norm_forward, 256)(
    const element* __restrict__ x, const element* __restrict__ w, const element* __restrict__ b,
    const float* __restrict__ stats, element* __restrict__ out, int batch, int cells, int channels,
    int groups, int activation) {
  Norm norm = {x, w, b, stats, cells, channels, groups, activation};
  with_unit(batch * cells, channels, [&](auto n, int cell, int channel) {
    constexpr int V = n.value;
    const Coefficients<V> c = coefficients<V>(norm, cell / norm.cells, channel);
    long long at = (long long)cell * norm.channels + channel;
    Vector<element, V> values = load_vector<V>(norm.x + at);
    float y[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
      float normalized = (to_float(values.at[v]) - c.mean[v]) * c.rstd[v];
      y[v] = activate(norm.activation, fmaf(normalized, c.w[v], c.b[v])).value;
    }
    put_vector<V>(out + at, y, 0);
  });
}

// partials: Σ dz ∘ n and Σ dz of each channel over a part.
KERNEL(group_norm_sums, 256)(
    const element* __restrict__ x, const element* __restrict__ w, const element* __restrict__ b,
    const float* __restrict__ stats, const element* __restrict__ dy, float* __restrict__ partials,
    int cells, int channels, int groups, int activation, int lanes, int rows, int parts) {
  SHARED(float, shared, [WIDTH * THREADS]);
  Norm norm = {x, w, b, stats, cells, channels, groups, activation};
  with_width(channels % WIDTH == 0, [&](auto n) {
    constexpr int V = n.value;
    Part at = part_of_block<V>(norm.cells, norm.channels, lanes, rows, parts);
    float products[V] = {}, plain[V] = {};
    if (at.channel < norm.channels) {
      const Coefficients<V> c = coefficients<V>(norm, at.sample, at.channel);
      long long start = (long long)at.sample * norm.cells * norm.channels + at.channel;
      for (int cell = at.first; cell < at.end; cell += at.step) {
        long long from = start + (long long)cell * norm.channels;
        Vector<element, V> xs = load_vector<V>(norm.x + from), ds = load_vector<V>(dy + from);
#pragma unroll
        for (int v = 0; v < V; v++) {
          float normalized = (to_float(xs.at[v]) - c.mean[v]) * c.rstd[v];
          float d = slope(norm, c, v, normalized, to_float(ds.at[v]));
          products[v] += d * normalized;
          plain[v] += d;
        }
      }
    }
    lane_sums<V>(products, lanes, at.lane, shared);
    lane_sums<V>(plain, lanes, at.lane, shared);
    write_part<V>(partials, at, parts, norm.channels, products, plain);
  });
}

// means [batch, groups, 2]: of g ∘ n and of g = w ∘ dz over a group.
KERNEL(group_norm_means, 256)(
    const float* __restrict__ partials, const element* __restrict__ w, float* __restrict__ means,
    int cells, int channels, int groups, int parts) {
  SHARED(double, scratch, [TOTAL_THREADS]);
  double share = 1.0 / ((double)cells * (channels / groups));
  auto weight = [&](int channel) { return w != nullptr ? (double)to_float(w[channel]) : 1.0; };
  double products = group_total(partials, channels, groups, parts, scratch,
      [&](double sum, double, int, int channel) { return weight(channel) * sum; });
  double plain = group_total(partials, channels, groups, parts, scratch,
      [&](double, double sum, int, int channel) { return weight(channel) * sum; });
  if (threadIdx.x == 0) {
    means[2 * blockIdx.x] = (float)(share * products);
    means[2 * blockIdx.x + 1] = (float)(share * plain);
  }
}

// dx (+)= r·(g - mean(g) - n·mean(g ∘ n)) with g = w ∘ dz.
KERNEL(group_norm_backward, 256)(
    const element* __restrict__ x, const element* __restrict__ w, const element* __restrict__ b,
    const float* __restrict__ stats, const element* __restrict__ dy,
    const float* __restrict__ means, element* __restrict__ dx, int add, int batch, int cells,
    int channels, int groups, int activation) {
  Norm norm = {x, w, b, stats, cells, channels, groups, activation};
  with_unit(batch * cells, channels, [&](auto n, int cell, int channel) {
    constexpr int V = n.value;
    const Coefficients<V> c = coefficients<V>(norm, cell / norm.cells, channel);
    long long at = (long long)cell * norm.channels + channel;
    Vector<element, V> xs = load_vector<V>(norm.x + at), ds = load_vector<V>(dy + at);
    float d[V];
#pragma unroll
    for (int v = 0; v < V; v++) {
      float normalized = (to_float(xs.at[v]) - c.mean[v]) * c.rstd[v];
      float g = c.w[v] * slope(norm, c, v, normalized, to_float(ds.at[v]));
      const float* mean = means + 2 * c.group[v];
      d[v] = c.rstd[v] * (g - mean[1] - normalized * mean[0]);
    }
    put_vector<V>(dx + at, d, add);
  });
}
