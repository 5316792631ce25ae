// elements: f32 bf16 f16
// Magnitudes from real and imaginary parts, and back.
//
// parts [rows, 2 k] are f32: real parts of a row, then imaginary ones. A thread has one frequency of a
// row.

#include "element.cuh"

// y = sqrt(re² + im² + square), [rows, k].
KERNEL(spectrum_magnitude)(const float* __restrict__ parts, element* __restrict__ y, int rows,
                           int k, float square) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const long long row = i / k;
    if (row < rows) {
        const float re = parts[i + row * k], im = parts[i + row * k + k];
        y[i] = from_float<element>(sqrtf(fmaf(re, re, fmaf(im, im, square))));
    }
}

// d [rows, 2 k] = dy / y times the parts, with y as in spectrum_magnitude.
KERNEL(spectrum_backward)(const float* __restrict__ parts, const element* __restrict__ dy,
                          element* __restrict__ d, int rows, int k, float square) {
    const long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    const long long row = i / k;
    if (row < rows) {
        const float re = parts[i + row * k], im = parts[i + row * k + k];
        const float y = sqrtf(fmaf(re, re, fmaf(im, im, square)));
        const float ratio = to_float(dy[i]) / y;
        d[i + row * k] = from_float<element>(ratio * re);
        d[i + row * k + k] = from_float<element>(ratio * im);
    }
}
