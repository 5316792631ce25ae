// dtypes: f32 bf16 f16
// Embedding lookup and the gradient of the table (embedding/mod.rs). Positions are sorted by index with a stable radix
// sort, 8 bits per pass (histogram, scan, scatter); then every row of the table sums its positions in order, those of a
// frequent index PART at a time by blocks of their own. No atomics: ranks come from votes.

#include "rows.cuh"

constexpr int DIGITS = 256;
constexpr int WARPS = 8;
// Positions per block: each warp has a contiguous run of them.
constexpr int TILE = 1024;
constexpr int RUN = TILE / WARPS;
// Sorted positions that are summed by a block if all have the same index.
constexpr int PART = 64;

// The sort key of an index: those outside 0..rows come last.
DEVICE int key_of(int index, int rows) {
  return (unsigned)index < (unsigned)rows ? index : rows;
}

// The `valid` lanes that have the same digit as this lane.
DEVICE unsigned peers_of(int digit, bool valid) {
  unsigned peers = __ballot_sync(ALL_LANES, valid);
#pragma unroll
  for (int bit = 1; bit < DIGITS; bit *= 2) {
    unsigned set = __ballot_sync(ALL_LANES, digit & bit);
    peers &= digit & bit ? set : ~set;
  }
  return peers;
}

DEVICE int rank_among(unsigned peers) {
  return __popc(peers & ((1u << lane_id()) - 1));
}

// counts[warp][digit] for the run of every warp.
DEVICE void count_digits(const int* keys, int n, int rows, int shift, int (&counts)[WARPS][DIGITS]) {
  int(&own)[DIGITS] = counts[warp_id()];
  for (int digit = lane_id(); digit < DIGITS; digit += WARP) {
    own[digit] = 0;
  }
  __syncwarp();
  int begin = blockIdx.x * TILE + warp_id() * RUN;
  for (int i = begin + lane_id(); i < begin + RUN; i += WARP) {
    bool valid = i < n;
    int digit = valid ? key_of(keys[i], rows) >> shift & (DIGITS - 1) : 0;
    unsigned peers = peers_of(digit, valid);
    if (valid && rank_among(peers) == 0) {
      own[digit] += __popc(peers);
    }
    __syncwarp();
  }
}

// counts [DIGITS, blocks]: how often each digit occurs in a block's tile. 256 threads.
KERNEL(embedding_histogram)
(const int* __restrict__ keys, int* __restrict__ counts, int n, int rows, int shift) {
  SHARED(int, of_warp, [WARPS][DIGITS]);
  count_digits(keys, n, rows, shift, of_warp);
  __syncthreads();
  int sum = 0;
  for (int warp = 0; warp < WARPS; warp++) {
    sum += of_warp[warp][threadIdx.x];
  }
  counts[threadIdx.x * gridDim.x + blockIdx.x] = sum;
}

// Exclusive prefix sum of counts [n], in place. One block of 256 threads.
KERNEL(embedding_scan)(int* __restrict__ counts, int n) {
  SHARED(int, of_warp, [WARPS]);
  int each = (n + DIGITS - 1) / DIGITS;
  int begin = min((int)threadIdx.x * each, n), end = min(begin + each, n);
  int sum = 0;
  for (int i = begin; i < end; i++) {
    sum += counts[i];
  }
  int upto = sum;
  for (int distance = 1; distance < WARP; distance *= 2) {
    int before = __shfl_up_sync(ALL_LANES, upto, distance);
    upto += lane_id() >= distance ? before : 0;
  }
  if (lane_id() == WARP - 1) {
    of_warp[warp_id()] = upto;
  }
  __syncthreads();
  int total = upto - sum;
  for (int warp = 0; warp < warp_id(); warp++) {
    total += of_warp[warp];
  }
  for (int i = begin; i < end; i++) {
    int count = counts[i];
    counts[i] = total;
    total += count;
  }
}

// Stably sorts keys and positions by this digit. `offsets` are the scanned counts; `positions` is null in the first
// pass, where they are 0, 1, ... 256 threads.
KERNEL(embedding_scatter)
(const int* __restrict__ keys, const int* __restrict__ positions, const int* __restrict__ offsets,
 int* __restrict__ sorted_keys, int* __restrict__ sorted_positions, int n, int rows, int shift) {
  SHARED(int, next, [WARPS][DIGITS]);
  count_digits(keys, n, rows, shift, next);
  __syncthreads();
  int offset = offsets[threadIdx.x * gridDim.x + blockIdx.x];
  for (int warp = 0; warp < WARPS; warp++) {
    int count = next[warp][threadIdx.x];
    next[warp][threadIdx.x] = offset;
    offset += count;
  }
  __syncthreads();
  int begin = blockIdx.x * TILE + warp_id() * RUN;
  for (int i = begin + lane_id(); i < begin + RUN; i += WARP) {
    bool valid = i < n;
    int key = valid ? key_of(keys[i], rows) : 0;
    int digit = key >> shift & (DIGITS - 1);
    unsigned peers = peers_of(digit, valid);
    int rank = rank_among(peers);
    int at = next[warp_id()][digit] + rank;
    __syncwarp();
    if (valid) {
      if (rank == 0) {
        next[warp_id()][digit] += __popc(peers);
      }
      sorted_keys[at] = key;
      sorted_positions[at] = positions == nullptr ? i : positions[i];
    }
    __syncwarp();
  }
}

// total += rows position(begin) .. position(end - 1) of dy [.., h]: N columns from `column`.
template <int N, class F>
DEVICE void add_rows(float (&total)[N], const element* dy, int h, int column, int begin, int end, F position) {
#pragma unroll 4
  for (int i = begin; i < end; i++) {
    Vector<element, N> d = load_vector<N>(dy + (long long)position(i) * h + column);
#pragma unroll
    for (int j = 0; j < N; j++) {
      total[j] += to_float(d.at[j]);
    }
  }
}

// bounds [rows, 2], initially zero: begin and end of the positions of each row among the sorted keys.
// parts [n / PART, h]: for each PART keys that are the same row, the sum of dy over their positions.
// One block per PART keys.
KERNEL(embedding_segments, 128, 12)
(const element* __restrict__ dy, const int* __restrict__ keys, const int* __restrict__ positions,
 int* __restrict__ bounds, float* __restrict__ parts, int n, int rows, int h) {
  int first = blockIdx.x * PART, i = first + threadIdx.x;
  if (threadIdx.x < PART && i < n && keys[i] < rows) {
    if (i == 0 || keys[i - 1] != keys[i]) {
      bounds[2 * keys[i]] = i;
    }
    if (i == n - 1 || keys[i + 1] != keys[i]) {
      bounds[2 * keys[i] + 1] = i + 1;
    }
  }
  if (first + PART > n || keys[first] >= rows || keys[first] != keys[first + PART - 1]) {
    return;
  }
  with_width(h % WIDTH == 0, [&](auto width) {
    constexpr int N = width.value;
    for (int column = threadIdx.x * N; column < h; column += blockDim.x * N) {
      float total[N] = {};
      add_rows(total, dy, h, column, first, first + PART, [&](int i) { return positions[i]; });
      store_floats<N>(parts + (long long)blockIdx.x * h + column, total);
    }
  });
}

// y [n, h] (+)= rows of table [rows, h]; `outside` for an index out of range. A thread moves 16 bytes if h allows it.
KERNEL(embedding_gather)
(const element* __restrict__ table, const int* __restrict__ index, element* __restrict__ y, int n,
 int rows, int h, float outside, int add) {
  with_unit(n, h, [&](auto width, int position, int column) {
    constexpr int N = width.value;
    int row = key_of(index[position], rows);
    float values[N];
    if (row < rows) {
      Vector<element, N> from = load_vector<N>(table + (long long)row * h + column);
#pragma unroll
      for (int i = 0; i < N; i++) {
        values[i] = to_float(from.at[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < N; i++) {
        values[i] = outside;
      }
    }
    put_vector<N>(y + (long long)position * h + column, values, add);
  });
}

// table [rows, h] (+)= for each row, the sum of dy over its positions: whole parts, which are summed already, then
// the positions before and after them.
KERNEL(embedding_sum)
(const element* __restrict__ dy, const int* __restrict__ positions, const int* __restrict__ bounds,
 const float* __restrict__ parts, element* __restrict__ table, int rows, int h, int add) {
  with_unit(rows, h, [&](auto width, int row, int column) {
    constexpr int N = width.value;
    int begin = bounds[2 * row], end = bounds[2 * row + 1];
    if (add && begin == end) {
      return;
    }
    int first = (begin + PART - 1) / PART, last = max(end / PART, first);
    float total[N] = {};
#pragma unroll 2
    for (int part = first; part < last; part++) {
      constexpr int M = N < 4 ? N : 4;
#pragma unroll
      for (int j = 0; j < N; j += M) {
        Vector<float, M> sum = load_vector<M>(parts + (long long)part * h + column + j);
#pragma unroll
        for (int k = 0; k < M; k++) {
          total[j + k] += sum.at[k];
        }
      }
    }
    int whole = (last - first) * PART;
    add_rows(total, dy, h, column, begin, end - whole, [&](int i) {
      return positions[i < first * PART ? i : i + whole];
    });
    put_vector<N>(table + (long long)row * h + column, total, add);
  });
}
