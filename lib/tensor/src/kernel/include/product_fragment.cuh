// The epilogue of product_kernel.cuh for sums that are still in registers, in the layout of tensor cores.
//
// Whatever does not depend on the element is decided once for all sums of a warp: each combination of the epilogue that
// training uses has its own loop, in which all offsets fit in 32 bits. The others share a compact loop. On an H200 the
// compact loop alone took 10 us for each 128 x 256 sums, as long as the products of 1024 k.
#pragma once

#include "product_kernel.cuh"

// How the 128 sums of a lane lie in the product: 256 / COLUMNS fragments of 16 x COLUMNS, each STEP rows below the one
// before it. With g = lane / 4 and t = lane % 4, accumulators 4 j .. 4 j + 3 of a fragment are (g, 8 j + 2 t), (g, 8 j
// + 2 t + 1), (g + 8, 8 j + 2 t) and (g + 8, 8 j + 2 t + 1).
constexpr int SUMS = 128;
template <int COLUMNS_, int STEP_>
struct Fragments {
    static constexpr int COLUMNS = COLUMNS_, STEP = STEP_;

    // The first row and column of the `i`-th strip of `width` columns.
    DEVICE static int row(int i, int width) {
        return i / (COLUMNS / width) * STEP;
    }
    DEVICE static int column(int i, int width) {
        return i % (COLUMNS / width) * width;
    }
};

// Shared memory of a warp: 16 rows of 32 floats, or of 64 elements, with strides that avoid bank conflicts.
constexpr int STRIP = 32, PITCH = STRIP + 8, WORD_PITCH = 36, SLAB_BYTES = 16 * PITCH * 4;

#if ELEMENT_BYTES == 2
// The two values in a word.
DEVICE Sums<2> unpack(unsigned word, bf16) {
    return {{__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000)}};
}

DEVICE Sums<2> unpack(unsigned word, f16) {
    return {{to_float(f16{static_cast<unsigned short>(word)}), to_float(f16{static_cast<unsigned short>(word >> 16)})}};
}

// Word i of lane t of each 4 lanes becomes word t of lane i. A lane then has 8 adjacent elements of a row, instead of 2
// of every 8: 16 bytes that it moves at once.
DEVICE void transpose_words(unsigned (&word)[4]) {
    const int lane = lane_id();
#pragma unroll
    for (int distance = 1; distance <= 2; distance *= 2) {
        const bool upper = lane & distance;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            // Words whose numbers differ in the same bit as the lanes.
            const int low = distance == 1 ? 2 * i : i, high = low + distance;
            const unsigned other = __shfl_xor_sync(ALL_LANES, upper ? word[low] : word[high], distance);
            if (upper) {
                word[low] = other;
            } else {
                word[high] = other;
            }
        }
    }
}

// Reads 8 adjacent elements as words in the layout of the sums; zeros if not `valid`.
DEVICE Vector<unsigned, 4> read_words(const element* from, bool valid) {
    return valid ? load_vector<4>(reinterpret_cast<const unsigned*>(from)) : Vector<unsigned, 4>{};
}

DEVICE void write_words(element* to, const unsigned (&word)[4], bool valid) {
    if (valid) {
        store_vector(reinterpret_cast<unsigned*>(to), Vector<unsigned, 4>{{word[0], word[1], word[2], word[3]}});
    }
}

// The bias of N columns, of which a lane has two of every 8 from `column` on; n is even. All is read at once, because
// each read takes hundreds of cycles if it is not in a cache.
template <int N>
struct Bias {
    unsigned at[N / 8];

    DEVICE void read(const Product& p, int column) {
#pragma unroll
        for (int i = 0; i < N / 8; i++) {
            at[i] = 0;
        }
        if (p.bias) {
#pragma unroll
            for (int i = 0; i < N / 8; i++) {
                if (column + 8 * i < p.n) {
                    at[i] = *reinterpret_cast<const unsigned*>(p.bias + column + 8 * i);
                }
            }
        }
    }

    DEVICE Sums<2> of(int i) const {
        return unpack(at[i], element());
    }
};

// ---- no activation

// C = sum + bias, with ADD + addend, for lines that are 16-byte aligned.
template <class F, bool ADD>
DEVICE void write_plain(const Product& p, const Place& at, const float (&sum)[SUMS]) {
    constexpr int STRIPS = SUMS / 16, AHEAD = 2;
    const int t = lane_id() % 4, row = at.row + lane_id() / 4;
    const long long offset = offset_of(p, at, row, at.column + 8 * t);
    const auto within = [&](int i, int half) { return (F::row(i, STRIP) + 8 * half) * p.out_stride + F::column(i, STRIP); };
    const auto valid = [&](int i, int half) {
        return row + F::row(i, STRIP) + 8 * half < p.m && at.column + 8 * t + F::column(i, STRIP) < p.n;
    };
    Bias<F::COLUMNS> bias;
    bias.read(p, at.column + 2 * t);
    Vector<unsigned, 4> addend[ADD ? STRIPS : 1][2];
    const auto read = [&](int i) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            addend[i][half] = read_words(p.addend + offset + within(i, half), valid(i, half));
        }
    };
    if constexpr (ADD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            read(i);
        }
    }
#pragma unroll
    for (int i = 0; i < STRIPS; i++) {
        if constexpr (ADD) {
            if (i + AHEAD < STRIPS) {
                read(i + AHEAD);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            unsigned word[4] = {};
            if constexpr (ADD) {
                const auto& from = addend[i][half];
                word[0] = from.at[0], word[1] = from.at[1], word[2] = from.at[2], word[3] = from.at[3];
                transpose_words(word);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float* two = sum + 16 * i + 4 * j + 2 * half;
                const Sums<2> plus = bias.of(F::column(i, STRIP) / 8 + j);
                float low = two[0] + plus.at[0], high = two[1] + plus.at[1];
                if constexpr (ADD) {
                    const Sums<2> more = unpack(word[j], element());
                    low += more.at[0], high += more.at[1];
                }
                word[j] = pack<element>(low, high);
            }
            transpose_words(word);
            write_words(p.out + offset + within(i, half), word, valid(i, half));
        }
    }
}

// C = sum + bias for lines that are 4-byte aligned, such as the logits of an even vocabulary. A warp writes 64 columns
// of a row at once, so that few sectors of memory are written in two parts.
template <class F>
DEVICE void write_pairs(const Product& p, const Place& at, const float (&sum)[SUMS], unsigned* slab) {
    constexpr int WIDE = 2 * STRIP;
    const int lane = lane_id(), t = lane % 4;
    element* to = p.out + offset_of(p, at, at.row, at.column + 2 * lane);
    Bias<F::COLUMNS> bias;
    bias.read(p, at.column + 2 * t);
#pragma unroll
    for (int i = 0; i < SUMS / 32; i++) {
        const int first = at.column + F::column(i, WIDE), left = p.m - at.row - F::row(i, WIDE);
        __syncwarp();
#pragma unroll
        for (int j = 0; j < WIDE / 8; j++) {
            const Sums<2> plus = bias.of(F::column(i, WIDE) / 8 + j);
            const float* four = sum + 32 * i + 4 * j;
            unsigned* word = slab + lane / 4 * WORD_PITCH + 4 * j + t;
            word[0] = pack<element>(four[0] + plus.at[0], four[1] + plus.at[1]);
            word[8 * WORD_PITCH] = pack<element>(four[2] + plus.at[0], four[3] + plus.at[1]);
        }
        __syncwarp();
        element* line = to + F::row(i, WIDE) * p.out_stride + F::column(i, WIDE);
        const bool valid = first + 2 * lane < p.n;
#pragma unroll
        for (int row = 0; row < 16; row++) {
            const unsigned word = slab[row * WORD_PITCH + lane];
            if (valid && row < left) {
                *reinterpret_cast<unsigned*>(line + row * p.out_stride) = word;
            }
        }
    }
}

// Sums in f32, of which a row has an even number.
template <class F>
DEVICE void write_parts(const Product& p, const Place& at, const float (&sum)[SUMS]) {
    const int t = lane_id() % 4, row = at.row + lane_id() / 4;
    const long long matrix = static_cast<long long>(at.split) * p.batch + at.batch;
    float* to = p.sums + (matrix * p.m + row) * p.n + at.column + 2 * t;
#pragma unroll
    for (int i = 0; i < SUMS / 4; i++) {
        const int below = F::row(i, 8), right = F::column(i, 8);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (row + below + 8 * half < p.m && at.column + 2 * t + right < p.n) {
                store_vector(to + (below + 8 * half) * p.n + right,
                             Vector<float, 2>{{sum[4 * i + 2 * half], sum[4 * i + 2 * half + 1]}});
            }
        }
    }
}

// ---- activations

// x = f(x).
template <int F>
DEVICE void apply(float (&x)[32]) {
#pragma unroll
    for (int i = 0; i < 32; i++) {
        x[i] = activate(F, x[i]).value;
    }
}

DEVICE void apply(int activation, float (&x)[32]) {
    switch (activation) {
        case GELU: return apply<GELU>(x);
        case GELU_TANH: return apply<GELU_TANH>(x);
        case SILU: return apply<SILU>(x);
        case TANH: return apply<TANH>(x);
        case SIGMOID: return apply<SIGMOID>(x);
        case RELU: return apply<RELU>(x);
        default: return apply<LEAKY_RELU>(x);
    }
}

// x = x f'(z).
template <int F>
DEVICE void apply_derivative(float (&x)[32], const unsigned (&z)[2][2][4]) {
#pragma unroll
    for (int i = 0; i < 32; i++) {
        const Sums<2> two = unpack(z[i / 16][i / 2 % 2][i / 4 % 4], element());
        x[i] *= activate(F, bounded(two.at[i % 2])).derivative;
    }
}

DEVICE void apply_derivative(int activation, float (&x)[32], const unsigned (&z)[2][2][4]) {
    switch (activation) {
        case GELU: return apply_derivative<GELU>(x, z);
        case GELU_TANH: return apply_derivative<GELU_TANH>(x, z);
        case SILU: return apply_derivative<SILU>(x, z);
        case TANH: return apply_derivative<TANH>(x, z);
        case SIGMOID: return apply_derivative<SIGMOID>(x, z);
        case RELU: return apply_derivative<RELU>(x, z);
        default: return apply_derivative<LEAKY_RELU>(x, z);
    }
}

// C = f(sum + bias) and z or, if GRADIENT, C = sum f'(addend), for lines that are 16-byte aligned. A turn of the loop
// has 64 columns of a fragment; the sums move down in their registers, because registers cannot be indexed.
template <class F, bool GRADIENT>
DEVICE void write_activated(const Product& p, const Place& at, float (&sum)[SUMS]) {
    constexpr int WIDE = 2 * STRIP;
    const int t = lane_id() % 4, row = at.row + lane_id() / 4;
    const long long offset = offset_of(p, at, row, at.column + 8 * t);
    const auto within = [&](int turn, int i) {
        return (F::row(turn, WIDE) + 8 * (i % 2)) * p.out_stride + F::column(turn, WIDE) + STRIP * (i / 2);
    };
    const auto valid = [&](int turn, int i) {
        return turn < SUMS / 32 && row + F::row(turn, WIDE) + 8 * (i % 2) < p.m &&
               at.column + 8 * t + F::column(turn, WIDE) + STRIP * (i / 2) < p.n;
    };
    // What the next turn needs is read during this one.
    Bias<WIDE> bias;
    Vector<unsigned, 4> addend[4];
    const auto read = [&](int turn) {
        if constexpr (GRADIENT) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                addend[i] = read_words(p.addend + offset + within(turn, i), valid(turn, i));
            }
        } else {
            bias.read(p, at.column + F::column(turn, WIDE) + 2 * t);
        }
    };
    read(0);
#pragma unroll 1
    for (int turn = 0; turn < SUMS / 32; turn++) {
        float x[32];
        unsigned word[2][2][4];
        if constexpr (GRADIENT) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                unsigned(&to)[4] = word[i / 2][i % 2];
                to[0] = addend[i].at[0], to[1] = addend[i].at[1], to[2] = addend[i].at[2], to[3] = addend[i].at[3];
                transpose_words(to);
            }
            read(turn + 1);
        }
#pragma unroll
        for (int i = 0; i < 32; i++) {
            x[i] = sum[i];
        }
#pragma unroll
        for (int i = 32; i < SUMS; i++) {
            sum[i - 32] = sum[i];
        }
        const auto write = [&](element* to) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                unsigned four[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float* two = x + 16 * (i / 2) + 4 * j + 2 * (i % 2);
                    four[j] = pack<element>(two[0], two[1]);
                }
                transpose_words(four);
                write_words(to + offset + within(turn, i), four, valid(turn, i));
            }
        };
        if constexpr (GRADIENT) {
            apply_derivative(p.activation, x, word);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const Sums<2> plus = bias.of(i);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    x[4 * i + e] += plus.at[e % 2];
                }
            }
            read(turn + 1);
            if (p.z) {
                write(p.z);
            }
            apply(p.activation, x);
        }
        write(p.out);
    }
}

// ---- any epilogue

template <class F>
DEVICE void write_compactly(const Product& p, const Place& at, const float (&sum)[SUMS], float* slab) {
    constexpr int VECTORS = STRIP / WIDTH, ROWS = WARP / VECTORS;
    const int lane = lane_id(), column = lane % VECTORS * WIDTH;
#pragma unroll 1
    for (int strip = 0; strip < SUMS / 16; strip++) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < SUMS / 16; i++) {
            if (i == strip) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float* four = sum + 16 * i + 4 * j;
                    float* to = slab + lane / 4 * PITCH + 8 * j + lane % 4 * 2;
                    store_vector(to, Vector<float, 2>{{four[0], four[1]}});
                    store_vector(to + 8 * PITCH, Vector<float, 2>{{four[2], four[3]}});
                }
            }
        }
        __syncwarp();
        const int first_row = at.row + F::row(strip, STRIP), first = at.column + F::column(strip, STRIP) + column;
#pragma unroll 1
        for (int row = lane / VECTORS; row < 16; row += ROWS) {
            const auto addend = read_addend(p, at, first_row + row, first);
            write_result(p, at, first_row + row, first, load_sums<WIDTH>(slab + row * PITCH + column), addend);
        }
    }
}

// Applies the epilogue to the sums of a warp, whose first row and column are those of `at`, and writes the results. The
// sums are lost. FORWARD and BACKWARD say whether activations and their derivatives have loops of their own.
template <class F, bool FORWARD, bool BACKWARD>
DEVICE void write_fragments(const Product& p, const Place& at, float (&sum)[SUMS], float* slab) {
    const bool is_aligned = p.aligned & 4, is_gradient = p.aligned & 8, is_even = p.n % 2 == 0;
    if (p.sums && is_even) {
        write_parts<F>(p, at, sum);
    } else if (!p.sums && p.activation == IDENTITY && is_aligned) {
        if (p.addend) {
            write_plain<F, true>(p, at, sum);
        } else {
            write_plain<F, false>(p, at, sum);
        }
    } else if (!p.sums && p.activation == IDENTITY && is_even && !p.addend) {
        write_pairs<F>(p, at, sum, reinterpret_cast<unsigned*>(slab));
    } else if (FORWARD && !p.sums && is_aligned && !is_gradient && !p.addend) {
        write_activated<F, false>(p, at, sum);
    } else if (BACKWARD && !p.sums && is_aligned && is_gradient) {
        write_activated<F, true>(p, at, sum);
    } else {
        write_compactly<F>(p, at, sum, slab);
    }
}
#endif
