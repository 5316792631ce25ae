//! Cuts a field into patches, the tokens of a grid: [x.., channels] -> [tokens, patch.., channels].
//!
//! Fields have one to three axes. The token grid of a 1D field is a single row, that of a 2D field a single plane.
//! Models only see patches, so no model needs an op that reorders elements.

/// Division of fields of one size into patches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patches {
    /// Grid points along each axis, one to three.
    grid: Vec<usize>,
    channels: usize,
    /// Patch size in points along each axis.
    side: usize,
}

impl Patches {
    /// Cuts fields of `channels` channels on `grid` into patches of `side` points along each axis. The error message
    /// names the mismatch.
    pub fn new(grid: &[usize], channels: usize, side: usize) -> Result<Self, String> {
        if !(1..=3).contains(&grid.len()) {
            return Err(format!("fields with {} axes; models support one to three", grid.len()));
        }
        match grid.iter().find(|n| **n == 0 || side == 0 || !n.is_multiple_of(side)) {
            Some(n) => Err(format!("patch = {side} does not divide the {n} grid points")),
            None => Ok(Self { grid: grid.to_vec(), channels, side }),
        }
    }

    /// Grid points along each axis.
    pub fn grid(&self) -> &[usize] {
        &self.grid
    }

    /// Grid points along each side of a patch.
    pub fn side(&self) -> usize {
        self.side
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Depth, rows and columns of the token grid; 1 for axes that the fields do not have.
    pub fn tokens(&self) -> [usize; 3] {
        let missing = 3 - self.grid.len();
        std::array::from_fn(|axis| {
            axis.checked_sub(missing).map_or(1, |i| self.grid[i] / self.side)
        })
    }

    /// Number of values per patch.
    pub fn patch_len(&self) -> usize {
        self.side.pow(self.grid.len() as u32) * self.channels
    }

    /// Number of values per field.
    pub fn field_len(&self) -> usize {
        self.grid.iter().product::<usize>() * self.channels
    }

    /// Cuts a field into patches.
    pub fn cut(&self, field: &[f32], out: &mut [f32]) {
        self.lines(|at, place, len| out[place..][..len].copy_from_slice(&field[at..][..len]));
    }

    /// Assembles the field from its patches.
    pub fn join(&self, patches: &[f32], out: &mut [f32]) {
        self.lines(|at, place, len| out[at..][..len].copy_from_slice(&patches[place..][..len]));
    }

    /// Calls `copy` for every run of values that is contiguous in both layouts, with its offset in the field, its
    /// offset in the patches and its length.
    fn lines(&self, mut copy: impl FnMut(usize, usize, usize)) {
        let (rows, heights) = match self.grid[..] {
            [x, y, _] if self.side > 1 => ([x, y], [self.side; 2]),
            [x, _] if self.side > 1 => ([1, x], [1, self.side]),
            // Both layouts are the same.
            _ => return copy(0, 0, self.field_len()),
        };
        let ([_, high, wide], length) = (self.tokens(), self.side * self.channels);
        for (plane, row) in (0..rows[0]).flat_map(|plane| (0..rows[1]).map(move |row| (plane, row)))
        {
            let first = (plane / heights[0] * high + row / heights[1]) * wide;
            let within = (plane % heights[0] * heights[1] + row % heights[1]) * length;
            for column in 0..wide {
                let at = ((plane * rows[1] + row) * wide + column) * length;
                copy(at, (first + column) * self.patch_len() + within, length);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_where_they_belong_and_come_back() {
        let patches = Patches::new(&[4, 6], 2, 2).unwrap();
        assert_eq!(
            (patches.tokens(), patches.patch_len(), patches.field_len()),
            ([1, 2, 3], 8, 48)
        );
        let field: Vec<f32> = (0..48).map(|i| i as f32).collect();
        let (mut cut, mut back) = (vec![0.0; 48], vec![0.0; 48]);
        patches.cut(&field, &mut cut);
        // Token (1, 2): rows 2 and 3, columns 4 and 5, both channels.
        assert_eq!(cut[40..], [32.0, 33.0, 34.0, 35.0, 44.0, 45.0, 46.0, 47.0]);
        patches.join(&cut, &mut back);
        assert_eq!(back, field);
        let line = Patches::new(&[8], 3, 4).unwrap();
        assert_eq!((line.tokens(), line.patch_len()), ([1, 1, 2], 12));
        line.cut(&field[..24], &mut cut[..24]);
        assert_eq!(cut[..24], field[..24]);
        let volume = Patches::new(&[4, 2, 6], 1, 2).unwrap();
        assert_eq!((volume.tokens(), volume.patch_len()), ([2, 1, 3], 8));
        volume.cut(&field, &mut cut);
        // Token (1, 0, 2): planes 2 and 3, rows 0 and 1, columns 4 and 5.
        assert_eq!(cut[40..], [28.0, 29.0, 34.0, 35.0, 40.0, 41.0, 46.0, 47.0]);
        volume.join(&cut, &mut back);
        assert_eq!(back, field);
    }

    #[test]
    fn what_does_not_fit_is_said() {
        assert!(Patches::new(&[8, 9], 1, 4).unwrap_err().contains("the 9 grid points"));
        assert!(Patches::new(&[4; 4], 1, 4).unwrap_err().contains("4 axes"));
        assert!(Patches::new(&[4], 1, 0).is_err());
    }
}
