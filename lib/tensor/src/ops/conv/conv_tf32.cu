// dtypes: f32
// Convolution over one or two axes, of f32 rounded to tf32.

#define TF32
#define NAME(kernel) conv_tf32_##kernel
#include "conv.cuh"
