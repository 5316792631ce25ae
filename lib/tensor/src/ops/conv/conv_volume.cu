// dtypes: f32 bf16 f16
// Convolution over three axes.

#define VOLUME
#define NAME(kernel) conv_volume_##kernel
#include "conv.cuh"
