//! How a product is divided among blocks: which tile, and into how many parts the sum is split.
//!
//! The choice depends only on sizes, not on the GPU, so that results are bit-identical on every GPU. It minimizes the
//! time in a simple model: every multiprocessor works through its share of the blocks one after another, at a rate that
//! depends on the tile; a split sum is written and read once more in f32.

/// Multiprocessors of the modelled GPU (H100).
const MULTIPROCESSORS: usize = 132;
/// Memory bandwidth in bytes per cycle.
const BYTES_PER_CYCLE: f64 = 2000.0;
/// Cycles of an additional launch.
const LAUNCH_CYCLES: f64 = 4000.0;
/// Cycles of a block before its first and after its last tile.
const BLOCK_CYCLES: f64 = 1500.0;
/// Minimum number of tiles along k per part.
const LEAST_TILES: usize = 8;
/// Limits on a split sum: the number of parts, and the elements of all parts together.
const MOST_SPLITS: usize = 64;
const MOST_ELEMENTS: usize = 16 << 20;

/// The tile of C that a block computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tile {
    /// 64 × 64; the only one for unaligned lines and for both operands transposed.
    Small,
    /// 128 × 128.
    Medium,
    /// 128 × 256, for 16-bit elements.
    Large,
}

/// The arithmetic unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Tensor cores with 16-bit operands.
    Half,
    /// Tensor cores with f32 operands rounded to tf32.
    Tf32,
    /// f32 arithmetic.
    Float,
}

impl Unit {
    /// Elements of a tile along k: 64 bytes.
    fn depth(self) -> usize {
        if self == Unit::Half { 32 } else { 16 }
    }

    /// Multiply-adds per multiprocessor and cycle, by mma.sync or fused multiply-adds.
    fn rate(self) -> f64 {
        match self {
            Unit::Half => 1300.0,
            Unit::Tf32 => 500.0,
            Unit::Float => 110.0,
        }
    }
}

impl Tile {
    /// Rows and columns.
    pub(crate) fn size(self) -> (usize, usize) {
        match self {
            Tile::Small => (64, 64),
            Tile::Medium => (128, 128),
            Tile::Large => (128, 256),
        }
    }

    /// Threads per block.
    pub(crate) fn threads(self, unit: Unit) -> usize {
        match (self, unit) {
            (Tile::Small, _) | (Tile::Medium, Unit::Half | Unit::Tf32) => 128,
            (Tile::Medium, Unit::Float) | (Tile::Large, _) => 256,
        }
    }

    /// Bytes of shared memory per block: pipeline stages of 64 bytes for each row and column; STAGES * BYTES in the
    /// sources.
    pub(crate) fn shared(self, unit: Unit) -> usize {
        let (rows, columns) = self.size();
        let stages = if (self, unit) == (Tile::Medium, Unit::Float) { 3 } else { 4 };
        stages * 64 * (rows + columns)
    }

    /// The fraction of the rate that it reaches: larger tiles read less per multiply-add.
    fn efficiency(self, unit: Unit) -> f64 {
        match (self, unit) {
            (Tile::Small, Unit::Float) => 0.75,
            (Tile::Small, _) => 0.55,
            (Tile::Medium, _) => 0.9,
            (Tile::Large, _) => 1.0,
        }
    }
}

/// Sizes and constraints of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Rows, columns and length of the sum.
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// Products per batch, and products that are summed.
    pub(crate) batch: usize,
    pub(crate) terms: usize,
    /// Whether tiles other than the small one can be used.
    pub(crate) any_tile: bool,
    /// Whether the sum may be split.
    pub(crate) may_split: bool,
}

/// A tile and the number of parts of the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) tile: Tile,
    pub(crate) splits: usize,
}

/// Number of blocks of a plan.
pub(crate) fn blocks(sizes: &Sizes, plan: Plan) -> usize {
    let (rows, columns) = plan.tile.size();
    sizes.m.div_ceil(rows) * sizes.n.div_ceil(columns) * sizes.batch * plan.splits
}

/// Estimated time in cycles.
fn cycles(sizes: &Sizes, unit: Unit, plan: Plan) -> f64 {
    let (rows, columns) = plan.tile.size();
    let tiles = (sizes.k.div_ceil(unit.depth()) * sizes.terms).div_ceil(plan.splits);
    let of_block =
        (tiles * unit.depth() * rows * columns) as f64 / (unit.rate() * plan.tile.efficiency(unit));
    let rounds = blocks(sizes, plan).div_ceil(MULTIPROCESSORS) as f64;
    let second_pass = if plan.splits == 1 {
        0.0
    } else {
        let bytes = 8 * plan.splits * sizes.batch * sizes.m * sizes.n;
        LAUNCH_CYCLES + bytes as f64 / BYTES_PER_CYCLE
    };
    rounds * of_block + BLOCK_CYCLES + second_pass
}

/// The fastest plan; among equals, the one with the fewest parts and the smallest tile.
pub(crate) fn choose(sizes: &Sizes, unit: Unit) -> Plan {
    let tiles: &[Tile] = match unit {
        _ if !sizes.any_tile => &[Tile::Small],
        Unit::Half => &[Tile::Small, Tile::Medium, Tile::Large],
        Unit::Tf32 | Unit::Float => &[Tile::Small, Tile::Medium],
    };
    let all_tiles = sizes.k.div_ceil(unit.depth()) * sizes.terms;
    let elements = (sizes.batch * sizes.m * sizes.n).max(1);
    let most = MOST_SPLITS.min(all_tiles / LEAST_TILES).min(MOST_ELEMENTS / elements);
    let mut best = Plan { tile: Tile::Small, splits: 1 };
    let mut least = f64::INFINITY;
    let mut splits = 1;
    while splits == 1 || (sizes.may_split && splits <= most) {
        for &tile in tiles {
            let plan = Plan { tile, splits };
            let cycles = cycles(sizes, unit, plan);
            if cycles < least {
                (best, least) = (plan, cycles);
            }
        }
        splits *= 2;
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(m: usize, n: usize, k: usize, may_split: bool) -> Plan {
        let sizes = Sizes { m, n, k, batch: 1, terms: 1, any_tile: true, may_split };
        choose(&sizes, Unit::Half)
    }

    #[test]
    fn large_products_take_large_tiles_whole() {
        assert_eq!(plan(4096, 4096, 4096, true), Plan { tile: Tile::Large, splits: 1 });
        assert_eq!(plan(8192, 3072, 768, true).splits, 1);
    }

    #[test]
    fn a_long_sum_for_few_elements_is_split() {
        let plan = plan(768, 768, 32768, true);
        let (rows, columns) = plan.tile.size();
        let blocks = (768 / rows) * (768 / columns) * plan.splits;
        assert!(plan.splits > 1 && blocks >= 66, "{plan:?}: {blocks} blocks");
    }

    #[test]
    fn what_may_not_be_split_is_not() {
        assert_eq!(plan(64, 64, 1 << 20, false).splits, 1);
        assert_eq!(plan(1, 1, 1, true), Plan { tile: Tile::Small, splits: 1 });
    }

    #[test]
    fn few_elements_take_small_tiles() {
        assert_eq!(plan(256, 512, 1024, false).tile, Tile::Small);
    }
}
