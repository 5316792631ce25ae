// Operands of a convolution as a matrix product (implicit GEMM): the im2col matrices are gathered as they are read and
// never stored in global memory.
#pragma once

#include "divide.cuh"
#include "tile.cuh"

// One axis of the grid (conv/geometry.rs).
struct Axis {
    Divisor from, to, taps, stride;
    int dilation, margin;
};

struct Geometry {
    Divisor channels, filters;
    int batch, periodic;
#ifdef VOLUME
    Axis depth;
#endif
    Axis rows, columns;
};

// The first axis of the grid: without VOLUME a constant, which costs nothing.
DEVICE Axis planes(const Geometry& g) {
#ifdef VOLUME
    return g.depth;
#else
    return {ONE, ONE, ONE, ONE, 1, 0};
#endif
}

DEVICE int taps(const Geometry& g) {
    return planes(g).taps.by * g.rows.taps.by * g.columns.taps.by;
}

#define AXIS_PARAMETERS(axis)                                                                    \
    DIVISOR_PARAMETERS(axis##_from), DIVISOR_PARAMETERS(axis##_to), DIVISOR_PARAMETERS(axis##_taps), \
        DIVISOR_PARAMETERS(axis##_stride), int axis##_dilation, int axis##_margin
#define AXIS(axis)                                                                               \
    {DIVISOR(axis##_from), DIVISOR(axis##_to), DIVISOR(axis##_taps), DIVISOR(axis##_stride),     \
     axis##_dilation, axis##_margin}

#ifdef VOLUME
#define DEPTH_PARAMETERS AXIS_PARAMETERS(depth),
#define DEPTH_AXIS AXIS(depth),
#else
#define DEPTH_PARAMETERS
#define DEPTH_AXIS
#endif

#define GEOMETRY_PARAMETERS                                                                      \
    DIVISOR_PARAMETERS(channels), DIVISOR_PARAMETERS(filters), int batch, int periodic,          \
        DEPTH_PARAMETERS AXIS_PARAMETERS(rows), AXIS_PARAMETERS(columns)
#define GEOMETRY                                                                                 \
    { DIVISOR(channels), DIVISOR(filters), batch, periodic, DEPTH_AXIS AXIS(rows), AXIS(columns) }

// A cell of a grid or a tap of a filter, before its place in memory is computed; `slice` is negative if there is none.
struct Place {
    // A sample, a channel or a filter.
    int slice;
#ifdef VOLUME
    int plane;
#endif
    int row, column;
};

DEVICE Place place(int slice, int plane, int row, int column) {
#ifdef VOLUME
    return {slice, plane, row, column};
#else
    return {slice, row, column};
#endif
}

DEVICE int plane_of(const Place& place) {
#ifdef VOLUME
    return place.plane;
#else
    return 0;
#endif
}

DEVICE Place nowhere() {
    return place(-1, 0, 0, 0);
}

DEVICE bool is_within(int at, int length) { return static_cast<unsigned>(at) < static_cast<unsigned>(length); }

// A cell along a periodic axis; geometry.rs refuses filters that reach further than this.
DEVICE int wrap(int at, const Divisor& length) {
    at += 3 * length.by;
    return at - divide(at, length) * length.by;
}

// Operands: matrices whose adjacent columns are mostly adjacent in memory, in lines of `length_of` elements: the
// channels of a cell. `find_row` and `find_column` precompute what `line_of` needs of each; an element that is zero
// (padding) has no line, which is -1. Lines of a tensor and chunks of 16 bytes are counted in 31 bits (conv/cuda.rs).

// Rows are output cells, columns a tap and a channel: the part of x that a cell reads.
struct Seen {
    static constexpr bool HAS_TAPS = true;
    using Row = Place;
    using Column = Place;
    const element* data;
    Geometry g;
    int rows, columns;
};

DEVICE Place find_row(const Seen& seen, int cell) {
    const Geometry& g = seen.g;
    if (cell >= seen.rows) {
        return nowhere();
    }
    const Axis depth = planes(g);
    const int line = divide(cell, g.columns.to), plane = divide(line, g.rows.to);
    const int sample = divide(plane, depth.to);
    return place(sample, (plane - sample * depth.to.by) * depth.stride.by - depth.margin,
                 (line - plane * g.rows.to.by) * g.rows.stride.by - g.rows.margin,
                 (cell - line * g.columns.to.by) * g.columns.stride.by - g.columns.margin);
}

// The tap, and which of `slices` channels or filters.
DEVICE Place find_tap(const Geometry& g, int at, const Divisor& slices, int columns) {
    if (at >= columns) {
        return nowhere();
    }
    const int tap = divide(at, slices), line = divide(tap, g.columns.taps);
#ifdef VOLUME
    const int plane = divide(line, g.rows.taps), row = line - plane * g.rows.taps.by;
#else
    const int plane = 0, row = line;
#endif
    return place(at - tap * slices.by, plane * planes(g).dilation, row * g.rows.dilation,
                 (tap - line * g.columns.taps.by) * g.columns.dilation);
}

DEVICE Place find_column(const Seen& seen, int at) {
    return find_tap(seen.g, at, seen.g.channels, seen.columns);
}

DEVICE int line_of(const Seen& seen, Place cell, Place tap) {
    const Geometry& g = seen.g;
    if ((cell.slice | tap.slice) < 0) {
        return -1;
    }
    const int depth = planes(g).from.by, rows = g.rows.from.by, columns = g.columns.from.by;
    int p = plane_of(cell) + plane_of(tap), i = cell.row + tap.row, j = cell.column + tap.column;
    if (g.periodic) {
        p = wrap(p, planes(g).from);
        i = wrap(i, g.rows.from);
        j = wrap(j, g.columns.from);
    } else if (!is_within(p, depth) || !is_within(i, rows) || !is_within(j, columns)) {
        return -1;
    }
    return ((cell.slice * depth + p) * rows + i) * columns + j;
}

DEVICE int length_of(const Seen& seen) { return seen.g.channels.by; }

// Rows are input cells, columns a tap and a filter: the gradients of the outputs that read a cell.
struct Readers {
    static constexpr bool HAS_TAPS = true;
    using Row = Place;
    using Column = Place;
    const element* data;
    Geometry g;
    int rows, columns;
};

DEVICE Place find_row(const Readers& readers, int cell) {
    const Geometry& g = readers.g;
    if (cell >= readers.rows) {
        return nowhere();
    }
    const Axis depth = planes(g);
    const int line = divide(cell, g.columns.from), plane = divide(line, g.rows.from);
    const int sample = divide(plane, depth.from);
    return place(sample, plane - sample * depth.from.by + depth.margin,
                 line - plane * g.rows.from.by + g.rows.margin,
                 cell - line * g.columns.from.by + g.columns.margin);
}

DEVICE Place find_column(const Readers& readers, int at) {
    return find_tap(readers.g, at, readers.g.filters, readers.columns);
}

// The output along an axis whose first cell is `at`, or -1.
DEVICE int target(const Axis& axis, int at, int periodic) {
    if (periodic) {
        at = wrap(at, axis.from);
    }
    const int to = at < 0 ? -1 : divide(at, axis.stride);
    return to * axis.stride.by == at && to < axis.to.by ? to : -1;
}

DEVICE int line_of(const Readers& readers, Place cell, Place tap) {
    const Geometry& g = readers.g;
    if ((cell.slice | tap.slice) < 0) {
        return -1;
    }
    const Axis depth = planes(g);
    const int p = target(depth, plane_of(cell) - plane_of(tap), g.periodic);
    const int i = target(g.rows, cell.row - tap.row, g.periodic);
    const int j = target(g.columns, cell.column - tap.column, g.periodic);
    return (p | i | j) < 0 ? -1 : ((cell.slice * depth.to.by + p) * g.rows.to.by + i) * g.columns.to.by + j;
}

DEVICE int length_of(const Readers& readers) { return readers.g.filters.by; }

// A plain matrix; with `filters`, w with a row per tap and filter and a column per channel.
struct Matrix {
    // Along a row: all columns are in one line.
    static constexpr bool HAS_TAPS = false;
    using Row = int;
    using Column = int;
    const element* data;
    int rows, columns, taps;
    Divisor filters;
};

DEVICE int find_row(const Matrix& matrix, int at) {
    if (at >= matrix.rows) {
        return -1;
    }
    if (matrix.filters.by == 0) {
        return at;
    }
    const int tap = divide(at, matrix.filters);
    return (at - tap * matrix.filters.by) * matrix.taps + tap;
}

DEVICE int find_column(const Matrix& matrix, int at) {
    return at < matrix.columns ? at : -1;
}

DEVICE int line_of(const Matrix&, int row, int column) { return (row | column) < 0 ? -1 : row; }

DEVICE int length_of(const Matrix& matrix) { return matrix.columns; }

// Where a column lies in its line; negative past the last column.
DEVICE int slice_of(const Place& tap) { return tap.slice; }
DEVICE int slice_of(int column) { return column; }

// The address of an element; null if it is zero.
template <class Operand, class Row, class Column>
DEVICE const element* address(const Operand& operand, const Row& row, const Column& column) {
    const int line = line_of(operand, row, column);
    return line < 0 ? nullptr : operand.data + static_cast<long long>(line) * length_of(operand) + slice_of(column);
}

// No chunk: still negative after a step forward.
constexpr int NO_CHUNK = -0x7fffffff;

// The chunk of 16 bytes that begins at an element, counted from the first of the tensor; NO_CHUNK if it is zero. Lines
// are multiples of 16 bytes.
template <class Operand, class Row, class Column>
DEVICE int chunk_of(const Operand& operand, const Row& row, const Column& column) {
    const int line = line_of(operand, row, column);
    const int chunks = static_cast<unsigned>(length_of(operand)) / WIDTH;
    return line < 0 ? NO_CHUNK : line * chunks + slice_of(column) / WIDTH;
}

// Copies tiles of an operand. A line of a tile is a piece of an operand row: with LINES_INNER, lines follow one another
// along the inner axis of the product, otherwise they extend along it. Each thread copies equally many chunks of 16
// bytes, all in one column of chunks; what does not change from tile to tile is computed once, and the lines of memory
// of a tap once for all its channels: as long as the inner axis stays in them, from one tile to the next only the chunk
// moves.
template <class Operand_, class T_, int THREADS, bool LINES_INNER_, bool UNALIGNED_>
struct Gatherer {
    using Operand = Operand_;
    using T = T_;
    static constexpr bool LINES_INNER = LINES_INNER_, UNALIGNED = UNALIGNED_;
    static constexpr int STEP = THREADS / T::CHUNKS, PIECES = T::LINES / STEP;
    static_assert(T::LINES % STEP == 0, "every thread copies the same chunk of equally many lines");
    Operand operand;
    int outer;
    typename Operand::Row rows[PIECES];
    typename Operand::Column column;
    // Unless LINES_INNER: where on the inner axis the current lines of memory end, and the chunk of each piece, less
    // the first of the tile on the inner axis.
    int end;
    int chunks[PIECES];
};

// Finds the lines of memory that hold this thread's chunk of the tile at `inner`.
template <class G>
DEVICE void find_lines(G& g, int inner) {
    const int at = inner + threadIdx.x % G::T::CHUNKS * WIDTH;
    const auto column = find_column(g.operand, at);
    const int slice = slice_of(column);
    g.end = slice < 0 ? 0x7fffffff : at - slice + length_of(g.operand);
#pragma unroll
    for (int i = 0; i < G::PIECES; i++) {
        const int chunk = chunk_of(g.operand, g.rows[i], column);
        g.chunks[i] = chunk < 0 ? NO_CHUNK : chunk - inner / WIDTH;
    }
}

// For tiles that begin at `outer` on the outer axis.
template <class G>
DEVICE G gatherer(const typename G::Operand& operand, int outer) {
    const int line = threadIdx.x / G::T::CHUNKS, at = threadIdx.x % G::T::CHUNKS * WIDTH;
    G g;
    g.operand = operand;
    g.outer = outer;
    g.end = 0;
    if (G::LINES_INNER) {
        g.column = find_column(operand, outer + at);
    } else {
#pragma unroll
        for (int i = 0; i < G::PIECES; i++) {
            g.rows[i] = find_row(operand, outer + line + i * G::STEP);
        }
    }
    return g;
}

// Starts to copy a chunk of an operand; zeros if it is negative, in which case its address is not used.
DEVICE void copy_chunk(unsigned char* to, const element* data, int chunk) {
    const element* from = data + static_cast<long long>(chunk) * WIDTH;
#ifdef EMULATOR
    copy_async_16(to, from, chunk < 0 ? 0 : 16);
#else
    // Selects the size by a predicate, because the compiler would compute it with shifts.
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        ".reg .u32 size;\n"
        "setp.ge.s32 p, %2, 0;\n"
        "selp.u32 size, 16, 0, p;\n"
        "cp.async.cg.shared.global [%0], [%1], 16, size;\n"
        "}" ::"r"(shared_address(to)),
        "l"(__cvta_generic_to_global(from)), "r"(chunk)
        : "memory");
#endif
}

// Starts to copy the tile that begins at `inner` on the inner axis. UNALIGNED reads one element at a time, for
// operands whose contiguous groups are not multiples of 16 bytes; these copies are synchronous.
template <class G>
DEVICE void gather(G& g, unsigned char* tile, int inner) {
    using T = typename G::T;
    constexpr bool IS_MOVING = !G::LINES_INNER && !G::UNALIGNED;
    const int line = threadIdx.x / T::CHUNKS, chunk = threadIdx.x % T::CHUNKS;
    bool is_past = false;
    if constexpr (IS_MOVING) {
        const int at = inner + chunk * WIDTH;
        if (at >= g.end && (G::Operand::HAS_TAPS || inner == 0)) {
            find_lines(g, inner);
        }
        is_past = !G::Operand::HAS_TAPS && at >= g.end;
    }
    // The lines of a thread are swizzled alike.
    static_assert(G::STEP % (ELEMENT_BYTES == 4 && T::CHUNKS > 4 ? 4 : 8) == 0, "the swizzle repeats from step to step");
    unsigned char* first_to = tile + chunk_at<T>(line, chunk);
#pragma unroll
    for (int i = 0; i < G::PIECES; i++) {
        const auto row = G::LINES_INNER ? find_row(g.operand, inner + line + i * G::STEP) : g.rows[i];
        unsigned char* to = first_to + i * G::STEP * T::CHUNKS * 16;
        if constexpr (IS_MOVING) {
            copy_chunk(to, g.operand.data, is_past ? NO_CHUNK : g.chunks[i] + inner / WIDTH);
        } else if constexpr (!G::UNALIGNED) {
            copy_chunk(to, g.operand.data, chunk_of(g.operand, row, g.column));
        } else {
            const int first = (G::LINES_INNER ? g.outer : inner) + chunk * WIDTH;
#pragma unroll 1
            for (int e = 0; e < WIDTH; e++) {
                const auto column = find_column(g.operand, first + e);
                const element* from = address(g.operand, row, column);
                reinterpret_cast<element*>(to)[e] = from ? *from : from_float<element>(0.0f);
            }
        }
    }
}
