// Division by numbers that are the same for a whole launch, without a division.
#pragma once

#include "element.cuh"

// A divisor d > 0 with f = ceil(2^(31 + s) / d) and s = ceil(log2 d), as kernel/divisor.rs computes them.
struct Divisor {
    int by;
    unsigned factor;
    int shift;
};

// Parameters of a kernel for a divisor, and the divisor made from them.
#define DIVISOR_PARAMETERS(name) int name, unsigned name##_factor, int name##_shift
#define DIVISOR(name) {name, name##_factor, name##_shift}

constexpr Divisor ONE{1, 1u << 31, 0};

// n / d, exactly, for 0 <= n < 2^31: floor(n f / 2^(31 + s)) (Granlund and Montgomery 1994, "Division by Invariant Integers
// using Multiplication", theorem 4.2).
DEVICE int divide(int n, const Divisor& d) {
    return static_cast<int>(__umulhi(2u * static_cast<unsigned>(n), d.factor) >> d.shift);
}

// n mod d, for the same n.
DEVICE int remainder(int n, const Divisor& d) {
    return n - divide(n, d) * d.by;
}
