//! Exact symmetries of the equations: transformations of the grid, optionally with a change of sign, that map solutions
//! to solutions.
//!
//! A symmetry holds for the discretised equation with its boundary conditions, for all values of its parameter and
//! constants: transform the initial state, solve, undo the transformation, and the solution is the same except for
//! rounding. Each solver declares its own symmetries.

/// The symmetries of an equation, and the channels whose mean it conserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symmetries {
    /// Point symmetries other than the identity, in the order in which views use them.
    pub points: &'static [Point],
    /// The direction in which the solution may be translated by any number of cells, if there is one.
    pub translation: Option<[isize; 2]>,
    /// Whether [`points`](Self::points) require coordinates centred on the domain. Where solutions may be translated
    /// along every axis, any centre works.
    pub centred: bool,
    /// Channels whose mean over the grid does not change in time.
    pub conserved: &'static [usize],
}

/// A point symmetry on grids of any size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Whether to exchange the two axes.
    pub swap: bool,
    /// Whether to reverse each axis.
    pub flip: [bool; 2],
    /// Whether to change the sign of all channels.
    pub negate: bool,
    /// Shift of the result along the first axis, in quarters of the period.
    pub quarters: usize,
}

impl Point {
    /// The identity.
    pub const IDENTITY: Self = Self { swap: false, flip: [false; 2], negate: false, quarters: 0 };

    /// The reflections and rotations of a square.
    pub const SQUARE: [Self; 7] = [
        Self { flip: [true, false], ..Self::IDENTITY },
        Self { flip: [false, true], ..Self::IDENTITY },
        Self { flip: [true, true], ..Self::IDENTITY },
        Self { swap: true, ..Self::IDENTITY },
        Self { swap: true, flip: [true, false], ..Self::IDENTITY },
        Self { swap: true, flip: [false, true], ..Self::IDENTITY },
        Self { swap: true, flip: [true, true], ..Self::IDENTITY },
    ];
}

/// A symmetry on one grid: v(i, j) = ±u(a, b), where (a, b) is (i, j) with the axes exchanged, then reversed, then
/// shifted, as declared. In one dimension, j is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symmetry {
    /// Whether to exchange the two axes.
    pub swap: bool,
    /// Whether to reverse each axis.
    pub flip: [bool; 2],
    /// Shift along each axis, in cells.
    pub shift: [usize; 2],
    /// Whether to change the sign of all channels.
    pub negate: bool,
}

impl Symmetries {
    /// Returns all views of a field on `grid` that differ for a model with patches of `patch` cells: the identity and
    /// the point symmetries without a shift, then the same with shifts of 1/2, 1/4, 3/4, 1/8, … of a patch, down to
    /// single cells.
    pub fn views(&self, grid: &[usize], patch: usize) -> Vec<Symmetry> {
        let [x, y] = sides(grid);
        let fits =
            |point: &&Point| (!point.swap || x == y) && (x * point.quarters).is_multiple_of(4);
        let identity = [Point::IDENTITY];
        let points: Vec<&Point> = identity.iter().chain(self.points).filter(fits).collect();
        let [dx, dy] = self.translation.unwrap_or([0, 0]);
        let cells = if self.translation.is_some() { cells_of(patch) } else { vec![0] };
        let of_shift = |cells: usize| {
            let along = move |direction: isize, side: usize, start: usize| {
                (start as isize + direction * cells as isize).rem_euclid(side as isize) as usize
            };
            points.iter().map(move |point| Symmetry {
                swap: point.swap,
                flip: point.flip,
                negate: point.negate,
                shift: [along(dx, x, x * point.quarters / 4), along(dy, y, 0)],
            })
        };
        cells.into_iter().flat_map(of_shift).collect()
    }
}

impl Symmetry {
    /// Transforms a field [grid.., channels] with one or two axes.
    pub fn apply(&self, field: &[f32], grid: &[usize], out: &mut [f32]) {
        let channels = field.len() / grid.iter().product::<usize>();
        let cells = out.chunks_exact_mut(channels).zip(self.sources(grid));
        cells.for_each(|(out, at)| self.copy(&field[at * channels..][..channels], out));
    }

    /// Undoes [`apply`](Self::apply).
    pub fn undo(&self, field: &[f32], grid: &[usize], out: &mut [f32]) {
        let channels = field.len() / grid.iter().product::<usize>();
        let cells = field.chunks_exact(channels).zip(self.sources(grid));
        cells.for_each(|(cell, at)| self.copy(cell, &mut out[at * channels..][..channels]));
    }

    fn copy(&self, cell: &[f32], out: &mut [f32]) {
        let sign = if self.negate { -1.0 } else { 1.0 };
        out.iter_mut().zip(cell).for_each(|(out, u)| *out = sign * u);
    }

    /// Returns the cell from which each cell of the result is copied, in row-major order.
    fn sources(&self, grid: &[usize]) -> impl Iterator<Item = usize> {
        let ([x, y], Self { swap, flip, shift, .. }) = (sides(grid), *self);
        let along = move |axis: usize, i: usize, side: usize| {
            let i = if flip[axis] { side - 1 - i } else { i };
            (i + shift[axis]) % side
        };
        let cell = move |(i, j): (usize, usize)| {
            let (a, b) = if swap { (j, i) } else { (i, j) };
            along(0, a, x) * y + along(1, b, y)
        };
        (0..x).flat_map(move |i| (0..y).map(move |j| (i, j))).map(cell)
    }
}

/// Returns the number of cells along the first and the second axis; a missing axis has one.
fn sides(grid: &[usize]) -> [usize; 2] {
    [grid[0], grid.get(1).copied().unwrap_or(1)]
}

/// Returns the cells of a patch in van der Corput order: 0, then the cells at 1/2, 1/4, 3/4, 1/8, … of the patch; each
/// cell once.
fn cells_of(patch: usize) -> Vec<usize> {
    let digits = patch.next_power_of_two().trailing_zeros();
    let mut cells = Vec::with_capacity(patch);
    for number in 0..1usize << digits {
        let reversed = (0..digits).fold(0, |all, digit| (all << 1) | ((number >> digit) & 1));
        let cell = (reversed * patch) >> digits;
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shifts_halve_the_largest_gap_and_reach_every_cell() {
        assert_eq!(cells_of(8), [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(cells_of(6), [0, 3, 1, 4, 2, 5]);
        assert_eq!((cells_of(1), cells_of(2)), (vec![0], vec![0, 1]));
    }

    #[test]
    fn a_transformation_is_undone() {
        let field: Vec<f32> = (0..2 * 3 * 3).map(|i| i as f32).collect();
        let symmetry = Symmetry { swap: true, flip: [true, false], shift: [1, 2], negate: true };
        let (mut moved, mut back) = (vec![0.0; 18], vec![0.0; 18]);
        symmetry.apply(&field, &[3, 3], &mut moved);
        // (i, j) = (0, 1): exchanging the axes gives (1, 0), reversing the first axis (1, 0), and shifting (2, 2).
        assert_eq!(moved[2..4], [-16.0, -17.0]);
        symmetry.undo(&moved, &[3, 3], &mut back);
        assert_eq!(back, field);
    }
}
