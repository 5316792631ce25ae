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

// A cell of a grid or a tap of a filter, before its address is computed; `slice` is negative if there is none.
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

// A cell along a periodic axis; geometry.rs refuses filters that reach further than this.
DEVICE int wrap(int at, const Divisor& length) {
    at += 3 * length.by;
    return at - divide(at, length) * length.by;
}

// Operands: matrices whose adjacent columns are mostly adjacent in memory. `find_row` and `find_column` precompute what
// `address` needs of each; an element that is zero (padding) has no address.

// Rows are output cells, columns a tap and a channel: the part of x that a cell reads.
struct Seen {
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

DEVICE const element* address(const Seen& seen, Place cell, Place tap) {
    const Geometry& g = seen.g;
    if (cell.slice < 0 || tap.slice < 0) {
        return nullptr;
    }
    const int depth = planes(g).from.by, rows = g.rows.from.by, columns = g.columns.from.by;
    int p = plane_of(cell) + plane_of(tap), i = cell.row + tap.row, j = cell.column + tap.column;
    if (g.periodic) {
        p = wrap(p, planes(g).from);
        i = wrap(i, g.rows.from);
        j = wrap(j, g.columns.from);
    } else if (p < 0 || p >= depth || i < 0 || i >= rows || j < 0 || j >= columns) {
        return nullptr;
    }
    long long plane = (long long)cell.slice * depth + p;
    long long at = (plane * rows + i) * columns + j;
    return seen.data + at * g.channels.by + tap.slice;
}

// Rows are input cells, columns a tap and a filter: the gradients of the outputs that read a cell.
struct Readers {
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

DEVICE const element* address(const Readers& readers, Place cell, Place tap) {
    const Geometry& g = readers.g;
    if (cell.slice < 0 || tap.slice < 0) {
        return nullptr;
    }
    const Axis depth = planes(g);
    int p = target(depth, plane_of(cell) - plane_of(tap), g.periodic);
    int i = target(g.rows, cell.row - tap.row, g.periodic);
    int j = target(g.columns, cell.column - tap.column, g.periodic);
    if (p < 0 || i < 0 || j < 0) {
        return nullptr;
    }
    long long plane = (long long)cell.slice * depth.to.by + p;
    long long at = (plane * g.rows.to.by + i) * g.columns.to.by + j;
    return readers.data + at * g.filters.by + tap.slice;
}

// A plain matrix; with `filters`, w with a row per tap and filter and a column per channel.
struct Matrix {
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

DEVICE const element* address(const Matrix& matrix, int row, int column) {
    return row < 0 || column < 0 ? nullptr
                               : matrix.data + (long long)row * matrix.columns + column;
}

// Copies tiles of an operand, whose lines are pieces of its rows: with LINES_INNER the lines follow one another along
// the inner axis of the product, otherwise they extend along it. Each thread copies equally many chunks of 16 bytes,
// all in one column of chunks; what does not change from tile to tile is computed once.
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
};

// For tiles that begin at `outer` on the outer axis.
template <class G>
DEVICE G gatherer(const typename G::Operand& operand, int outer) {
    const int line = threadIdx.x / G::T::CHUNKS, at = threadIdx.x % G::T::CHUNKS * WIDTH;
    G g;
    g.operand = operand;
    g.outer = outer;
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

// Starts to copy the tile that begins at `inner` on the inner axis. UNALIGNED reads one element at a time, for
// operands whose contiguous groups are not multiples of 16 bytes; these copies are synchronous.
template <class G>
DEVICE void gather(G& g, unsigned char* tile, int inner) {
    const int line = threadIdx.x / G::T::CHUNKS, chunk = threadIdx.x % G::T::CHUNKS;
    if (!G::LINES_INNER) {
        g.column = find_column(g.operand, inner + chunk * WIDTH);
    }
#pragma unroll
    for (int i = 0; i < G::PIECES; i++) {
        if (G::LINES_INNER) {
            g.rows[i] = find_row(g.operand, inner + line + i * G::STEP);
        }
        unsigned char* to = tile + chunk_at<typename G::T>(line + i * G::STEP, chunk);
        if constexpr (!G::UNALIGNED) {
            const element* from = address(g.operand, g.rows[i], g.column);
            copy_async_16(to, from ? from : g.operand.data, from ? 16 : 0);
        } else {
            const int first = (G::LINES_INNER ? g.outer : inner) + chunk * WIDTH;
#pragma unroll 1
            for (int e = 0; e < WIDTH; e++) {
                const auto column = find_column(g.operand, first + e);
                const element* from = address(g.operand, g.rows[i], column);
                reinterpret_cast<element*>(to)[e] = from ? *from : from_float<element>(0.0f);
            }
        }
    }
}
