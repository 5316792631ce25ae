// dtypes: f32 bf16 f16
// Convolution over one or two axes.

#define NAME(kernel) conv_##kernel
#include "conv.cuh"
