// dtypes: f32
// Convolution over three axes, of f32 rounded to tf32.

#define TF32
#define VOLUME
#define NAME(kernel) conv_volume_tf32_##kernel
#include "conv.cuh"
