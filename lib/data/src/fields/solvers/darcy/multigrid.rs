//! A geometric multigrid V-cycle for the finite volumes of [`super`], symmetric as a preconditioner must be: red-black
//! Gauss-Seidel on the way down, in reverse order on the way up. Restriction sums the residuals of four cells, and
//! prolongation copies the correction to all four. Each level rediscretizes the equation with averaged coefficients.

/// Number of sweeps on the way down, and again on the way up.
const SWEEPS: usize = 2;
/// Number of sweeps on the coarsest level, on the way down and again on the way up.
const COARSEST_SWEEPS: usize = 16;

/// The equation on one grid, with its unknowns.
pub(super) struct Level {
    n: usize,
    a: Vec<f64>,
    /// Transmissibilities between each cell and the next along x and y; for the last cell of a line, to the boundary.
    next: [Vec<f64>; 2],
    /// Transmissibilities between each cell and the previous one, or the boundary.
    previous: [Vec<f64>; 2],
    diagonal: Vec<f64>,
    u: Vec<f64>,
    f: Vec<f64>,
}

/// Creates the levels from `n` cells per side down, halving the size while it is even and larger than two.
pub(super) fn levels(n: usize) -> Vec<Level> {
    let mut all = vec![Level::new(n)];
    let mut n = n;
    while n.is_multiple_of(2) && n > 2 {
        n /= 2;
        all.push(Level::new(n));
    }
    all
}

impl Level {
    fn new(n: usize) -> Self {
        let zeros = || vec![0.0; n * n];
        Self {
            n,
            a: zeros(),
            next: [zeros(), zeros()],
            previous: [zeros(), zeros()],
            diagonal: zeros(),
            u: zeros(),
            f: zeros(),
        }
    }

    /// Sets the coefficients of the cells, [x, y].
    pub fn set_coefficients(&mut self, a: &[f64]) {
        self.a.copy_from_slice(a);
        let n = self.n;
        for i in 0..n {
            for j in 0..n {
                let at = i * n + j;
                for (axis, (place, step)) in [(i, n), (j, 1)].into_iter().enumerate() {
                    // Half a cell to the boundary, where u = 0.
                    let border = 2.0 * a[at];
                    let face = |b: f64| 2.0 * a[at] * b / (a[at] + b);
                    self.next[axis][at] = if place + 1 < n { face(a[at + step]) } else { border };
                    self.previous[axis][at] = if place > 0 { face(a[at - step]) } else { border };
                }
                self.diagonal[at] = self.next[0][at]
                    + self.next[1][at]
                    + self.previous[0][at]
                    + self.previous[1][at];
            }
        }
    }

    /// Sets each coefficient to the mean over four cells of the finer level.
    pub fn average_coefficients(&mut self, finer: &Level) {
        let mut a = vec![0.0; self.n * self.n];
        add_up(&finer.a, &mut a, self.n);
        a.iter_mut().for_each(|a| *a *= 0.25);
        self.set_coefficients(&a);
    }

    /// Solution after the last cycle.
    pub fn solution(&self) -> &[f64] {
        &self.u
    }

    /// Computes the inflow into a cell from its neighbours.
    #[inline(always)]
    fn inflow(&self, u: &[f64], i: usize, j: usize) -> f64 {
        let (n, at) = (self.n, i * self.n + j);
        let mut sum = 0.0;
        if i > 0 {
            sum += self.previous[0][at] * u[at - n];
        }
        if i + 1 < n {
            sum += self.next[0][at] * u[at + n];
        }
        if j > 0 {
            sum += self.previous[1][at] * u[at - 1];
        }
        if j + 1 < n {
            sum += self.next[1][at] * u[at + 1];
        }
        sum
    }

    /// Computes out = A u.
    pub fn apply(&self, u: &[f64], out: &mut [f64]) {
        for i in 0..self.n {
            for j in 0..self.n {
                let at = i * self.n + j;
                out[at] = self.diagonal[at] * u[at] - self.inflow(u, i, j);
            }
        }
    }

    /// Performs one Gauss-Seidel sweep over the cells of one colour.
    fn relax(&mut self, colour: usize) {
        for i in 0..self.n {
            for j in ((i + colour) % 2..self.n).step_by(2) {
                let at = i * self.n + j;
                self.u[at] = (self.f[at] + self.inflow(&self.u, i, j)) / self.diagonal[at];
            }
        }
    }
}

/// Runs one V-cycle from a zero initial guess for the right-hand side `f`; the finest level holds the result.
pub(super) fn cycle(levels: &mut [Level], f: &[f64]) {
    let last = levels.len() - 1;
    levels[0].f.copy_from_slice(f);
    let mut residual = vec![0.0; f.len()];
    for at in 0..=last {
        let sweeps = if at == last { COARSEST_SWEEPS } else { SWEEPS };
        let (fine, coarse) = levels[at..].split_at_mut(1);
        let fine = &mut fine[0];
        fine.u.fill(0.0);
        for _ in 0..sweeps {
            fine.relax(0);
            fine.relax(1);
        }
        if let Some(coarse) = coarse.first_mut() {
            let residual = &mut residual[..fine.u.len()];
            fine.apply(&fine.u, residual);
            residual.iter_mut().zip(&fine.f).for_each(|(r, f)| *r = f - *r);
            add_up(residual, &mut coarse.f, coarse.n);
        }
    }
    for at in (0..=last).rev() {
        let sweeps = if at == last { COARSEST_SWEEPS } else { SWEEPS };
        let (fine, coarse) = levels[at..].split_at_mut(1);
        let fine = &mut fine[0];
        if let Some(coarse) = coarse.first() {
            for (at, u) in fine.u.iter_mut().enumerate() {
                *u += coarse.u[at / fine.n / 2 * coarse.n + at % fine.n / 2];
            }
        }
        for _ in 0..sweeps {
            fine.relax(1);
            fine.relax(0);
        }
    }
}

/// Sums blocks of two by two elements; the result has `n` elements per side.
fn add_up(fine: &[f64], coarse: &mut [f64], n: usize) {
    for (at, sum) in coarse.iter_mut().enumerate() {
        let first = 2 * (at / n) * 2 * n + 2 * (at % n);
        let (above, below) = (&fine[first..], &fine[first + 2 * n..]);
        *sum = above[0] + above[1] + below[0] + below[1];
    }
}
