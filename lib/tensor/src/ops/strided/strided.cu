// dtypes: f32 bf16 f16
// Copies, sums and products of strided tensors (ops/strided/mod.rs). An index space has AXES axes; leading ones may
// have size 1. If the number of elements along an axis is a multiple of WIDTH, a thread moves 16 bytes along it
// (V = WIDTH), otherwise one element (V = 1); sizes count groups of V elements along that axis.

#include "divide.cuh"
#include "rows.cuh"

constexpr int AXES = 6;

// Strides as kernel parameters, and as an array.
#define SIX(name) int name##0, int name##1, int name##2, int name##3, int name##4, int name##5
#define ARRAY(name) {name##0, name##1, name##2, name##3, name##4, name##5}

// Sizes, by which is divided.
#define SIX_DIVISORS(name)                                                                        \
    DIVISOR_PARAMETERS(name##0), DIVISOR_PARAMETERS(name##1), DIVISOR_PARAMETERS(name##2),        \
        DIVISOR_PARAMETERS(name##3), DIVISOR_PARAMETERS(name##4), DIVISOR_PARAMETERS(name##5)
#define DIVISORS(name)                                                                            \
    {DIVISOR(name##0), DIVISOR(name##1), DIVISOR(name##2),                                        \
     DIVISOR(name##3), DIVISOR(name##4), DIVISOR(name##5)}

struct Axes {
    int at[AXES];
};

struct Sizes {
    Divisor at[AXES];
};

// The positions in N tensors of the unit-th group of V adjacent elements along axis LAST, over axes FIRST to LAST.
template <int FIRST, int LAST, int V, int N>
DEVICE void locate(long long (&position)[N], int unit, const Sizes& sizes, const Axes (&strides)[N]) {
#pragma unroll
    for (int axis = LAST; axis >= FIRST; axis--) {
        const Divisor size = sizes.at[axis];
        if (size.by == 1 && axis != LAST) {
            continue;
        }
        const int rest = divide(unit, size);
        const int index = (unit - rest * size.by) * (axis == LAST ? V : 1);
        unit = rest;
#pragma unroll
        for (int i = 0; i < N; i++) {
            position[i] += static_cast<long long>(index) * strides[i].at[axis];
        }
    }
}

// V adjacent values, or the same value repeated.
template <int V>
DEVICE void load(float (&values)[V], const element* from, int stride) {
    if (V > 1 && stride == 1) {
        const Vector<element, V> vector = load_vector<V>(from);
#pragma unroll
        for (int v = 0; v < V; v++) {
            values[v] = to_float(vector.at[v]);
        }
    } else {
        const float value = to_float(*from);
#pragma unroll
        for (int v = 0; v < V; v++) {
            values[v] = value;
        }
    }
}

// The unit of this thread.
DEVICE int flat_unit() {
    return blockIdx.x * blockDim.x + threadIdx.x;
}

template <int V>
DEVICE void copy(const element* x, element* out, int units, float scale, int add, const Sizes& sizes,
                 const Axes (&strides)[2]) {
    if (flat_unit() >= units) {
        return;
    }
    long long at[2] = {};
    locate<0, AXES - 1, V>(at, flat_unit(), sizes, strides);
    float values[V];
    load(values, x + at[0], strides[0].at[AXES - 1]);
#pragma unroll
    for (int v = 0; v < V; v++) {
        values[v] *= scale;
    }
    put_vector<V>(out + at[1], values, add);
}

template <int V, class F>
DEVICE void binary(const element* a, const element* b, element* out, int units, int add,
                   const Sizes& sizes, const Axes (&strides)[3], F f) {
    if (flat_unit() >= units) {
        return;
    }
    long long at[3] = {};
    locate<0, AXES - 1, V>(at, flat_unit(), sizes, strides);
    float x[V], y[V];
    load(x, a + at[0], strides[0].at[AXES - 1]);
    load(y, b + at[1], strides[1].at[AXES - 1]);
#pragma unroll
    for (int v = 0; v < V; v++) {
        x[v] = f(x[v], y[v]);
    }
    put_vector<V>(out + at[2], x, add);
}

// The sum of a thread's columns, or of a lane's part of a row, over every `step`-th of the reduced units from `first`
// to `last`.
template <int V, int VR, bool FACTOR>
DEVICE void sum_units(float (&sum)[V], const element* x, const element* factor,
                      const long long (&start)[2], int first, int last, int step, int stride,
                      const Sizes& sizes, const Axes (&strides)[2]) {
    // Not unrolled: uniform registers would run out, and there are enough threads to hide the latency of loads.
#pragma unroll 1
    for (int r = first; r < last; r += step) {
        long long at[2] = {start[0], start[1]};
        locate<AXES / 2, AXES - 1, VR>(at, r, sizes, strides);
        float values[V];
        load(values, x + at[0], 1);
        if (FACTOR) {
            float factors[V];
            load(factors, factor + at[1], stride);
#pragma unroll
            for (int v = 0; v < V; v++) {
                values[v] *= factors[v];
            }
        }
#pragma unroll
        for (int v = 0; v < V; v++) {
            sum[v] += values[v];
        }
    }
}

// Columns: a thread has V adjacent results.
template <int V, bool FACTOR>
DEVICE void sum_columns(const element* x, const element* factor, element* out, float* partials,
                        int kept, int reduced, int chunk, int chunks, float scale, int add,
                        const Sizes& sizes, const Axes (&strides)[2]) {
    const int units = kept / V, part = flat_unit() / units, unit = flat_unit() % units;
    if (part >= chunks) {
        return;
    }
    long long at[2] = {};
    locate<0, AXES / 2 - 1, V>(at, unit, sizes, strides);
    float sum[V] = {};
    const int first = part * chunk;
    sum_units<V, 1, FACTOR>(sum, x, factor, at, first, min(first + chunk, reduced), 1,
                            strides[1].at[AXES / 2 - 1], sizes, strides);
#pragma unroll
    for (int v = 0; v < V; v++) {
        sum[v] *= scale;
    }
    if (partials) {
        store_floats<V>(partials + static_cast<long long>(part) * kept + unit * V, sum);
    } else {
        put_vector<V>(out + unit * V, sum, add);
    }
}

// Rows: a warp has one result, of which each lane sums every 32nd vector.
template <int V, bool FACTOR>
DEVICE void sum_rows(const element* x, const element* factor, element* out, float* partials,
                     int kept, int reduced, int chunk, int chunks, float scale, int add,
                     const Sizes& sizes, const Axes (&strides)[2]) {
    const int warp = flat_unit() / WARP, part = warp / kept, row = warp % kept;
    if (part >= chunks) {
        return;
    }
    long long at[2] = {};
    locate<0, AXES / 2 - 1, 1>(at, row, sizes, strides);
    float sums[V] = {};
    const int first = part * chunk;
    sum_units<V, V, FACTOR>(sums, x, factor, at, first + lane_id(), min(first + chunk, reduced / V),
                            WARP, strides[1].at[AXES - 1], sizes, strides);
    float sum = 0.0f;
#pragma unroll
    for (int v = 0; v < V; v++) {
        sum += sums[v];
    }
    sum = warp_sum(sum) * scale;
    if (lane_id() > 0) {
        return;
    }
    if (partials) {
        partials[static_cast<long long>(part) * kept + row] = sum;
    } else {
        put(out + row, sum, add);
    }
}

// out (+)= scale·x, whose views begin at `x_start` and `out_start`. `whole` means that V is WIDTH; `units` is the
// number of groups of V elements.
KERNEL(strided_copy, 256)(const element* x, element* out, long long x_start, long long out_start,
                          int units, int whole, float scale, int add, SIX_DIVISORS(n), SIX(dx),
                          SIX(dout)) {
    const Sizes sizes = {DIVISORS(n)};
    const Axes strides[2] = {ARRAY(dx), ARRAY(dout)};
    x += x_start;
    out += out_start;
    with_width(whole, [&](auto n) { copy<n.value>(x, out, units, scale, add, sizes, strides); });
}

// out (+)= a + b or, if `multiply`, a·b.
KERNEL(strided_binary, 256)(const element* a, const element* b, element* out, int units, int whole,
                            int multiply, int add, SIX_DIVISORS(n), SIX(da), SIX(db), SIX(dout)) {
    const Sizes sizes = {DIVISORS(n)};
    const Axes strides[3] = {ARRAY(da), ARRAY(db), ARRAY(dout)};
    const auto f = [=](float a, float b) { return multiply ? a * b : a + b; };
    with_width(whole, [&](auto n) { binary<n.value>(a, b, out, units, add, sizes, strides, f); });
}

// Sums over the last three axes: out [kept] (+)= scale·Σ x, or x·factor; or, if `partials` [chunks, kept] is given, the
// sums over `chunk` reduced units each.
#define SUM_PARAMETERS                                                                            \
    const element *x, const element *factor, element *out, float *partials, int kept, int reduced, \
        int chunk, int chunks, int whole, float scale, int add, SIX_DIVISORS(n), SIX(dx), SIX(df)
#define SUM(KIND)                                                                                 \
    const Sizes sizes = {DIVISORS(n)};                                                            \
    const Axes strides[2] = {ARRAY(dx), ARRAY(df)};                                             \
    with_width(whole, [&](auto n) {                                                               \
        constexpr int V = n.value;                                                                \
        if (factor) {                                                                             \
            KIND<V, true>(x, factor, out, partials, kept, reduced, chunk, chunks, scale, add,     \
                          sizes, strides);                                                        \
        } else {                                                                                  \
            KIND<V, false>(x, factor, out, partials, kept, reduced, chunk, chunks, scale, add,    \
                           sizes, strides);                                                       \
        }                                                                                         \
    });

// One thread per V adjacent results of a chunk.
KERNEL(strided_sum_columns, 256)(SUM_PARAMETERS) {
    SUM(sum_columns)
}

// One warp per result of a chunk.
KERNEL(strided_sum_rows, 256)(SUM_PARAMETERS) {
    SUM(sum_rows)
}
