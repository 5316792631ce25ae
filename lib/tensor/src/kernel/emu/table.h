// The kernel table that build.rs appends to each source, and the calling convention of kernels.
#pragma once

struct EmulatorKernel {
    const char* name;
    const char* parameters;  // names, separated by commas
    const char* constant;    // '1' for each parameter that is const T* __restrict__, otherwise '0'
    unsigned most_threads;   // per block, from KERNEL(name, threads); 1024 if not given
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

// Layout of a tensor in global memory, and the extents of a box (kernel/arg.rs: TensorMap).
struct EmulatorTensorMap {
    const void* address;
    unsigned long long extents[4];  // the first is the number of elements per line
    unsigned long long strides[3];  // in bytes, of the other dimensions
    unsigned box[4];
    unsigned element_bytes;
};
struct TensorMap {
    const EmulatorTensorMap* map;
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
template <>
struct EmulatorKind<double> {
    static constexpr unsigned char value = 6;
};
template <>
struct EmulatorKind<TensorMap> {
    static constexpr unsigned char value = 7;
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

    // Not instrumented: the arguments belong to the runtime.
    __attribute__((no_sanitize_thread)) static void call(const unsigned long long* arguments) {
        // In a braced initializer list, arguments are evaluated from left to right.
        Call{next<A>(arguments)...};
    }
};

template <auto FUNCTION>
constexpr EmulatorKernel emulator_kernel(const char* name, const char* parameters,
                                         const char* constant, unsigned most_threads) {
    using Caller = EmulatorCaller<FUNCTION>;
    return {name, parameters, constant, most_threads, Caller::kinds, Caller::count, Caller::call};
}
