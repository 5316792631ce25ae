// What a kernel sees of CUDA when it is compiled as C++ for the host.
//
// Everything a lane shares with others is a call into the runtime (runtime.h). Operands go by value in
// registers, so that the locals of a kernel stay its own and are not taken for memory accesses.
#pragma once

using size_t = decltype(sizeof(0));

#define __restrict__ __restrict
#define __launch_bounds__(...)

struct uint3 {
    unsigned x, y, z;
};
using dim3 = uint3;

#define VECTOR_TYPES(name, scalar)                                                  \
    struct alignas(2 * sizeof(scalar)) name##2 {                                    \
        scalar x, y;                                                                \
    };                                                                              \
    struct alignas(16) name##4 {                                                    \
        scalar x, y, z, w;                                                          \
    };                                                                              \
    static inline name##2 make_##name##2(scalar x, scalar y) {                      \
        return {x, y};                                                              \
    }                                                                               \
    static inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) {  \
        return {x, y, z, w};                                                        \
    }
VECTOR_TYPES(float, float)
VECTOR_TYPES(int, int)
VECTOR_TYPES(uint, unsigned)
#undef VECTOR_TYPES

// Sixteen bytes, and eight.
struct EmulatorWords {
    unsigned at[4];
};
struct EmulatorPair {
    unsigned at[2];
};

// Where in the source a lane waits.
struct EmulatorPlace {
    const char* file;
    int line;
};
#define EMULATOR_HERE EmulatorPlace{file, line}
#define EMULATOR_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

enum EmulatorShuffle { EMULATOR_INDEX, EMULATOR_UP, EMULATOR_DOWN, EMULATOR_XOR };
enum EmulatorMatrix { EMULATOR_MMA_BF16, EMULATOR_MMA_F16, EMULATOR_MMA_TF32 };

extern "C" {
uint3 emulator_thread_index() __attribute__((const));
uint3 emulator_block_index() __attribute__((const));
uint3 emulator_block_extent() __attribute__((const));
uint3 emulator_grid_extent() __attribute__((const));

void emulator_sync_threads(EmulatorPlace place);
void emulator_sync_warp(unsigned mask, EmulatorPlace place);
unsigned long long emulator_shuffle(EmulatorShuffle kind, unsigned mask, unsigned long long value,
                                    unsigned argument, unsigned width, EmulatorPlace place);
unsigned emulator_ballot(unsigned mask, bool vote, EmulatorPlace place);

void* emulator_shared(const void* key, const char* name, size_t bytes, size_t alignment);
unsigned char* emulator_dynamic_shared() __attribute__((const));
EmulatorWords emulator_load(const void* from, unsigned bytes);
void emulator_store(void* to, EmulatorWords words, unsigned bytes);

void emulator_copy_async(void* to, const void* from, int bytes, int valid);
void emulator_commit_async();
void emulator_wait_async(int left);

EmulatorWords emulator_ldmatrix(const void* row, int matrices, bool transposed);
EmulatorWords emulator_mma(int kind, EmulatorWords a, EmulatorPair b, EmulatorWords d);

float expf(float);
float exp2f(float);
float expm1f(float);
float logf(float);
float log2f(float);
float log1pf(float);
float powf(float, float);
float sqrtf(float);
float cbrtf(float);
float sinf(float);
float cosf(float);
float tanf(float);
float tanhf(float);
float atan2f(float, float);
float erff(float);
float erfcf(float);
float fmodf(float, float);
float fmaf(float, float, float);
float fmaxf(float, float);
float fminf(float, float);
float fabsf(float);
float floorf(float);
float ceilf(float);
float truncf(float);
float rintf(float);
float roundf(float);
float copysignf(float, float);
}

#define threadIdx emulator_thread_index()
#define blockIdx emulator_block_index()
#define blockDim emulator_block_extent()
#define gridDim emulator_grid_extent()
constexpr int warpSize = 32;

// ---- barriers, shuffles, votes

static inline void __syncthreads(EMULATOR_PLACE) {
    emulator_sync_threads(EMULATOR_HERE);
}

static inline void __syncwarp(unsigned mask = 0xffffffffu, EMULATOR_PLACE) {
    emulator_sync_warp(mask, EMULATOR_HERE);
}

template <class T>
static inline T emulator_shuffle_value(EmulatorShuffle kind, unsigned mask, T value,
                                       unsigned argument, int width, EmulatorPlace place) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "shuffles take values of 4 or 8 bytes");
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(T));
    bits = emulator_shuffle(kind, mask, bits, argument, static_cast<unsigned>(width), place);
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
}

template <class T>
static inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32, EMULATOR_PLACE) {
    return emulator_shuffle_value(EMULATOR_INDEX, mask, value, static_cast<unsigned>(lane), width,
                                  EMULATOR_HERE);
}

template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                               EMULATOR_PLACE) {
    return emulator_shuffle_value(EMULATOR_UP, mask, value, delta, width, EMULATOR_HERE);
}

template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                                 EMULATOR_PLACE) {
    return emulator_shuffle_value(EMULATOR_DOWN, mask, value, delta, width, EMULATOR_HERE);
}

template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32,
                                EMULATOR_PLACE) {
    return emulator_shuffle_value(EMULATOR_XOR, mask, value, static_cast<unsigned>(lane_mask),
                                  width, EMULATOR_HERE);
}

static inline unsigned __ballot_sync(unsigned mask, int vote, EMULATOR_PLACE) {
    return emulator_ballot(mask, vote != 0, EMULATOR_HERE);
}

static inline int __any_sync(unsigned mask, int vote, EMULATOR_PLACE) {
    return emulator_ballot(mask, vote != 0, EMULATOR_HERE) != 0;
}

static inline int __all_sync(unsigned mask, int vote, EMULATOR_PLACE) {
    return emulator_ballot(mask, vote != 0, EMULATOR_HERE) == mask;
}

// ---- bits and numbers

static inline unsigned __float_as_uint(float x) {
    unsigned bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}

static inline float __uint_as_float(unsigned bits) {
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}

static inline int __float_as_int(float x) {
    return static_cast<int>(__float_as_uint(x));
}

static inline float __int_as_float(int bits) {
    return __uint_as_float(static_cast<unsigned>(bits));
}

static inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}

static inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}

static inline int __ffs(int x) {
    return __builtin_ffs(x);
}

static inline int __clz(int x) {
    return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}

static inline bool isfinite(float x) {
    return __builtin_isfinite(x);
}

static inline bool isnan(float x) {
    return __builtin_isnan(x);
}

static inline bool isinf(float x) {
    return __builtin_isinf(x);
}

static inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}

// sin(πx) and cos(πx) for small |x|.
static inline float sinpif(float x) {
    return static_cast<float>(__builtin_sin(3.14159265358979323846 * x));
}

static inline float cospif(float x) {
    return static_cast<float>(__builtin_cos(3.14159265358979323846 * x));
}

static inline float __expf(float x) {
    return expf(x);
}

static inline float __logf(float x) {
    return logf(x);
}

static inline float __fdividef(float a, float b) {
    return a / b;
}

static inline int __float2int_rn(float x) {
    return static_cast<int>(rintf(x));
}

#define MIN_MAX(T)                        \
    static inline T min(T a, T b) {       \
        return b < a ? b : a;             \
    }                                     \
    static inline T max(T a, T b) {       \
        return a < b ? b : a;             \
    }
MIN_MAX(int)
MIN_MAX(unsigned)
MIN_MAX(long long)
MIN_MAX(unsigned long long)
#undef MIN_MAX

static inline float min(float a, float b) {
    return fminf(a, b);
}

static inline float max(float a, float b) {
    return fmaxf(a, b);
}

template <class T>
static inline T __ldg(const T* p) {
    return *p;
}

// ---- 16-bit floats and tf32

static inline unsigned short emulator_to_bfloat(float x) {
    const unsigned bits = __float_as_uint(x);
    if (isnan(x)) {
        return 0x7fff;
    }
    return static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline unsigned short emulator_to_half(float x) {
    const unsigned bits = __float_as_uint(x);
    const unsigned sign = bits >> 16 & 0x8000;
    const unsigned size = bits & 0x7fffffff;
    unsigned half;
    if (size > 0x7f800000) {
        return 0x7fff;
    } else if (size >= 0x477ff000) {
        half = 0x7c00;  // 65520 and above
    } else if (size >= 0x38800000) {
        const unsigned shifted = size - 0x38000000;
        half = (shifted + 0xfff + (shifted >> 13 & 1)) >> 13;
    } else {
        // Below 2^-14: the sum's last bit counts 2^-24, and the addition rounds to it.
        half = __float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000;
    }
    return static_cast<unsigned short>(sign | half);
}

static inline float emulator_from_half(unsigned short half) {
    const unsigned sign = static_cast<unsigned>(half & 0x8000) << 16;
    const unsigned size = half & 0x7fff;
    if (size >= 0x7c00) {
        return __uint_as_float(sign | 0x7f800000 | (size & 0x3ff) << 13);
    }
    // 2^112 corrects the exponent, of subnormal numbers as well.
    const float value = __uint_as_float(size << 13) * 5192296858534827628530496329220096.0f;
    return __uint_as_float(sign | __float_as_uint(value));
}

static inline unsigned emulator_to_tf32(float x) {
    const unsigned bits = __float_as_uint(x);
    if ((bits & 0x7fffffff) > 0x7f800000) {
        return 0x7fffffff;
    }
    return (bits & 0x7fffffff) == 0x7f800000 ? bits : (bits + 0x1000) & 0xffffe000;
}

// ---- the table of kernels that build.rs writes below each source

struct EmulatorKernel {
    const char* name;
    const char* parameters;  // names, separated by commas
    unsigned most_threads;   // of KERNEL(name, threads); 1024 where not given
    const unsigned char* kinds;
    unsigned count;
    void (*call)(const unsigned long long* arguments);
};

struct EmulatorSource {
    const char* name;
    const char* element;
    const EmulatorKernel* kernels;
    unsigned count;
};

template <class T>
struct EmulatorKind;
template <class T>
struct EmulatorKind<T*> {
    static constexpr unsigned char value = 0;
};
template <>
struct EmulatorKind<int> {
    static constexpr unsigned char value = 1;
};
template <>
struct EmulatorKind<unsigned> {
    static constexpr unsigned char value = 2;
};
template <>
struct EmulatorKind<long long> {
    static constexpr unsigned char value = 3;
};
template <>
struct EmulatorKind<unsigned long long> {
    static constexpr unsigned char value = 4;
};
template <>
struct EmulatorKind<float> {
    static constexpr unsigned char value = 5;
};

template <auto FUNCTION>
struct EmulatorCaller;
template <class... A, void (*FUNCTION)(A...)>
struct EmulatorCaller<FUNCTION> {
    static constexpr unsigned char kinds[] = {EmulatorKind<A>::value..., 255};
    static constexpr unsigned count = sizeof...(A);

    struct Call {
        Call(A... a) {
            FUNCTION(a...);
        }
    };

    template <class T>
    __attribute__((no_sanitize_thread)) static T next(const unsigned long long*& arguments) {
        T value;
        __builtin_memcpy(&value, arguments++, sizeof(T));
        return value;
    }

    // Not itself looked at: the arguments are the runtime's.
    __attribute__((no_sanitize_thread)) static void call(const unsigned long long* arguments) {
        // In braces, arguments are evaluated from left to right.
        Call{next<A>(arguments)...};
    }
};

template <auto FUNCTION>
constexpr EmulatorKernel emulator_kernel(const char* name, const char* parameters,
                                         unsigned most_threads) {
    using Caller = EmulatorCaller<FUNCTION>;
    return {name, parameters, most_threads, Caller::kinds, Caller::count, Caller::call};
}
