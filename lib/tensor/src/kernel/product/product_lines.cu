// dtypes: f32 bf16 f16
// Copies a matrix to lines that are aligned to 16 bytes, for products of matrices whose lines are not.
//
// A thread writes 16 bytes at once and reads them in parts that are as wide as the alignment of the lines allows: 4 bytes
// for two 16-bit elements if their number in a line is even. Moves each element once, so memory bounds it.

#include "element.cuh"

constexpr int THREADS = 256;

// y [lines, pitch] = x [lines, length], lines `stride` apart in x; pitch is a multiple of 16 bytes, and what is past the
// length becomes zero. Block b copies THREADS vectors of line b / across. `pairs`: stride and length are even.
KERNEL(product_lines, THREADS)(const element* x, element* y, int across, int length, int pitch, long long stride,
                               int pairs) {
    const int line = blockIdx.x / across, first = (blockIdx.x % across * THREADS + threadIdx.x) * WIDTH;
    if (first >= pitch) {
        return;
    }
    const element* from = x + line * stride + first;
    Vector<element, WIDTH> values;
#if ELEMENT_BYTES == 2
    if (pairs) {
#pragma unroll
        for (int e = 0; e < WIDTH; e += 2) {
            Vector<element, 2> two{};
            if (first + e < length) {
                two = load_vector<2>(from + e);
            }
            values.at[e] = two.at[0], values.at[e + 1] = two.at[1];
        }
        store_vector(y + static_cast<long long>(line) * pitch + first, values);
        return;
    }
#endif
#pragma unroll
    for (int e = 0; e < WIDTH; e++) {
        values.at[e] = first + e < length ? from[e] : from_float<element>(0.0f);
    }
    store_vector(y + static_cast<long long>(line) * pitch + first, values);
}
