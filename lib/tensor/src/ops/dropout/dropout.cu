// dtypes: f32 bf16 f16
// Dropout, forward and backward (ops/dropout/mod.rs).

#include "dropout.cuh"
#include "rows.cuh"

// out (+)= x·scale for elements that are kept, otherwise 0. x [samples, size]; a thread has WIDTH elements of a sample.
KERNEL(dropout_apply, 256)(const element* __restrict__ x, const int* __restrict__ counter,
                           element* __restrict__ out, int samples, int size, unsigned site,
                           unsigned threshold, float scale, int add) {
    const int unit = blockIdx.x * blockDim.x + threadIdx.x;
    const int vectors = (size + WIDTH - 1) / WIDTH;
    const int sample = unit / vectors, first = unit % vectors * WIDTH;
    if (sample >= samples) {
        return;
    }
    const DropoutMask mask = dropout_mask(counter, site, threshold);
    bool keep[WIDTH];
#pragma unroll
    for (int v = 0; v < WIDTH; v += 4) {
        const uint4 words = mask.words(sample, (first + v) / 4);
        keep[v] = mask.keeps(words.x);
        keep[v + 1] = mask.keeps(words.y);
        keep[v + 2] = mask.keeps(words.z);
        keep[v + 3] = mask.keeps(words.w);
    }
    x += static_cast<long long>(sample) * size + first;
    out += static_cast<long long>(sample) * size + first;
    if (size % WIDTH == 0) {
        const Vector<element, WIDTH> xs = load_vector<WIDTH>(x);
        float y[WIDTH];
#pragma unroll
        for (int v = 0; v < WIDTH; v++) {
            y[v] = keep[v] ? to_float(xs.at[v]) * scale : 0.0f;
        }
        put_vector<WIDTH>(out, y, add);
    } else {
#pragma unroll
        for (int v = 0; v < WIDTH; v++) {
            if (first + v < size) {
                put(out + v, keep[v] ? to_float(x[v]) * scale : 0.0f, add);
            }
        }
    }
}
