//! Divides a product among blocks: chooses the tile and the number of parts of the sum (split-k).
//!
//! The choice depends only on sizes and on whether wgmma is available and allowed, so that all GPUs of a generation
//! give the same bits. It minimizes the time in a simple model: every multiprocessor processes its share of the blocks
//! in rounds of as many blocks as it holds at once, at a rate that depends on the tile and that a single block of 4
//! warps does not reach; split-k sums are written and read once more in f32; operands with unaligned lines are read
//! slowly or copied first.

/// Multiprocessors of the modelled GPU (H100).
pub(crate) const MULTIPROCESSORS: usize = 132;
/// Memory bandwidth in bytes per cycle.
const BYTES_PER_CYCLE: f64 = 2000.0;
/// Elements per cycle of a copy to aligned lines, one per thread; estimated from its instructions.
const COPIED_PER_CYCLE: f64 = 250.0;
/// Cycles of an additional launch.
const LAUNCH_CYCLES: f64 = 4000.0;
/// Cycles per round of blocks before the first and after the last tile along k.
const ROUND_CYCLES: f64 = 1500.0;
/// Cycles in which a warpgroup writes its results, 128 sums per thread, measured with k = 768 on an H200; with an
/// activation, estimated from the instructions of GELU.
const EPILOGUE_CYCLES: f64 = 3000.0;
const ACTIVATION_CYCLES: f64 = 7000.0;
/// Slowdown of a block of 4 warps that is alone on its multiprocessor, relative to its share of the rate: each
/// scheduler has only one warp and idles while it waits. Estimated, not measured.
const ALONE: f64 = 1.6;
/// Minimum number of tiles along k per part.
const LEAST_TILES: usize = 8;
/// Epilogue cycles per 128 sums by mma.sync, without and with GELU: on an H200, a 128 x 256 tile took 10 and 20 us.
const SHARED_EPILOGUE_CYCLES: [f64; 2] = [66.0, 130.0];
/// Limits on split-k: the possible numbers of parts, and the maximum number of elements of all parts together.
const SPLITS: [usize; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 48, 64];
const MOST_ELEMENTS: usize = 16 << 20;
/// Maximum number of elements of a copy, which kernels count in 31 bits.
const MOST_COPIED: usize = i32::MAX as usize;

/// The tile of C that a block computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tile {
    /// 64 × 64; the only tile that supports unaligned lines or two transposed operands.
    Small,
    /// 128 × 128.
    Medium,
    /// 128 × 256, for 16-bit elements.
    Large,
    /// 128 × 256, computed by two Hopper warpgroups, for 16-bit elements.
    Wgmma,
    /// 128 × 128, computed by one of two Hopper warpgroups while the other writes its results.
    PingPong,
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
    /// Multiply-adds per multiprocessor and cycle, by mma.sync or fused multiply-adds: measured on an H200, 4096³.
    fn rate(self) -> f64 {
        match self {
            Unit::Half => 830.0,
            Unit::Tf32 => 395.0,
            Unit::Float => 90.0,
        }
    }
}

impl Tile {
    /// Whether the tile is computed by wgmma.
    pub(crate) fn uses_wgmma(self) -> bool {
        matches!(self, Tile::Wgmma | Tile::PingPong)
    }

    /// Numbers of rows and columns of the tile.
    pub(crate) fn size(self) -> (usize, usize) {
        match self {
            Tile::Small => (64, 64),
            Tile::Medium | Tile::PingPong => (128, 128),
            Tile::Large | Tile::Wgmma => (128, 256),
        }
    }

    /// Number of elements along k: 64 bytes, or 128 bytes with wgmma.
    fn depth(self, unit: Unit) -> usize {
        match (self, unit) {
            (Tile::Wgmma | Tile::PingPong, _) => 64,
            (_, Unit::Half) => 32,
            _ => 16,
        }
    }

    /// Threads per block.
    pub(crate) fn threads(self, unit: Unit) -> usize {
        match (self, unit) {
            (Tile::Small, _) | (Tile::Medium, Unit::Half | Unit::Tf32) => 128,
            (Tile::Medium, Unit::Float) | (Tile::Large, _) => 256,
            (Tile::Wgmma | Tile::PingPong, _) => 384,
        }
    }

    /// Bytes of shared memory per block: pipeline stages of 64 bytes for each row and column (STAGES * BYTES in the
    /// sources). With warpgroups, stages of 128 bytes, the sums of 8 warps, and padding to align the stages.
    pub(crate) fn shared(self, unit: Unit) -> usize {
        if self.uses_wgmma() {
            // The same size as 6 stages of a 128 × 128 tile.
            return 4 * 128 * (128 + 256) + 8 * 16 * 40 * 4 + 1024;
        }
        let (rows, columns) = self.size();
        let stages = if (self, unit) == (Tile::Medium, Unit::Float) { 3 } else { 4 };
        stages * 64 * (rows + columns)
    }

    /// Number of blocks that a multiprocessor holds at once, limited by registers and shared memory.
    fn resident(self) -> usize {
        match self {
            Tile::Small => 4,
            Tile::Medium => 2,
            Tile::Large | Tile::Wgmma | Tile::PingPong => 1,
        }
    }

    /// Fraction of [`Unit::rate`] that the tile reaches: larger tiles read less per multiply-add. wgmma is faster than
    /// mma.sync: on an H200, 4096³ took 378 us by mma.sync, 181 us by wgmma, and 191 us by ping-pong wgmma.
    fn efficiency(self, unit: Unit) -> f64 {
        match (self, unit) {
            (Tile::Small, Unit::Float) => 0.75,
            (Tile::Small, _) => 0.55,
            (Tile::Medium, _) => 0.9,
            (Tile::Large, _) => 1.0,
            (Tile::Wgmma, _) => 2.05,
            (Tile::PingPong, _) => 1.95,
        }
    }

    /// Fraction of the efficiency that remains if lines are read element by element: estimated, not measured.
    fn unaligned(unit: Unit) -> f64 {
        match unit {
            Unit::Half => 0.2,
            Unit::Tf32 => 0.4,
            Unit::Float => 0.7,
        }
    }
}

/// Sizes and constraints of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Rows and columns of the product, and length of the sum.
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// Number of products per batch, and number of products that are summed.
    pub(crate) batch: usize,
    pub(crate) terms: usize,
    /// Elements of the operands whose lines are not aligned to 16 bytes.
    pub(crate) unaligned: usize,
    /// Whether both operands are transposed.
    pub(crate) both_transposed: bool,
    /// Whether the sum may be split.
    pub(crate) may_split: bool,
    /// Whether wgmma is available and allowed for 16-bit elements.
    pub(crate) warpgroups: bool,
    /// Whether the ping-pong schedule is allowed.
    pub(crate) in_turns: bool,
    /// Whether the epilogue has an activation or a derivative.
    pub(crate) activates: bool,
}

/// How a product is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProductPlan {
    pub(crate) tile: Tile,
    /// Number of parts of the sum (split-k).
    pub(crate) splits: usize,
    /// Whether operands with unaligned lines are first copied to aligned lines.
    pub(crate) copied: bool,
}

/// Number of blocks of a plan.
pub(crate) fn blocks(sizes: &Sizes, plan: ProductPlan) -> usize {
    let (rows, columns) = plan.tile.size();
    sizes.m.div_ceil(rows) * sizes.n.div_ceil(columns) * sizes.batch * plan.splits
}

/// Number of multiply-adds per block.
pub(crate) fn multiply_adds(sizes: &Sizes, unit: Unit, plan: ProductPlan) -> usize {
    let (rows, columns) = plan.tile.size();
    let depth = plan.tile.depth(unit);
    let tiles = (sizes.k.div_ceil(depth) * sizes.terms).div_ceil(plan.splits);
    tiles * depth * rows * columns
}

/// Estimates the time of a plan in cycles.
fn cycles(sizes: &Sizes, unit: Unit, plan: ProductPlan) -> f64 {
    let (slowed, copying) = match (sizes.unaligned, plan.copied) {
        (0, _) => (1.0, 0.0),
        (_, false) => (Tile::unaligned(unit), 0.0),
        (elements, true) => (1.0, 2.0 * LAUNCH_CYCLES + elements as f64 / COPIED_PER_CYCLE),
    };
    let rate = unit.rate() * plan.tile.efficiency(unit) * slowed;
    let of_block = multiply_adds(sizes, unit, plan) as f64 / rate;
    // Number of blocks on the busiest multiprocessor.
    let most = blocks(sizes, plan).div_ceil(MULTIPROCESSORS);
    let rounds = most.div_ceil(plan.tile.resident());
    let is_alone = most % plan.tile.resident() == 1 && plan.tile.threads(unit) == 128;
    let shares = most as f64 + if is_alone { ALONE - 1.0 } else { 0.0 };
    let second_pass = if plan.splits == 1 {
        0.0
    } else {
        let bytes = 8 * plan.splits * sizes.batch * sizes.m * sizes.n;
        LAUNCH_CYCLES + bytes as f64 / BYTES_PER_CYCLE
    };
    let epilogue = if sizes.activates { ACTIVATION_CYCLES } else { EPILOGUE_CYCLES };
    // Counted only if wgmma tiles are candidates: otherwise all candidates have the same epilogue.
    let sums = plan.tile.size().0 * plan.tile.size().1 / 128 * usize::from(sizes.warpgroups);
    let shared_epilogue = SHARED_EPILOGUE_CYCLES[usize::from(sizes.activates)] * sums as f64;
    let multiplying = match plan.tile {
        Tile::Wgmma => most as f64 * (of_block + epilogue) + ROUND_CYCLES,
        // One warpgroup writes while the other multiplies, or both write if writing takes longer.
        Tile::PingPong => {
            most as f64 * of_block.max((of_block + epilogue) / 2.0) + epilogue + ROUND_CYCLES
        }
        _ => shares * of_block + most as f64 * shared_epilogue + rounds as f64 * ROUND_CYCLES,
    };
    copying + multiplying + second_pass
}

/// Returns the fastest plan; ties go to the plan with the fewest parts, then the smallest tile, then without a copy.
pub(crate) fn choose(sizes: &Sizes, unit: Unit) -> ProductPlan {
    let tiles: &[Tile] = match unit {
        _ if sizes.both_transposed => &[Tile::Small],
        Unit::Half if !sizes.warpgroups => &[Tile::Small, Tile::Medium, Tile::Large],
        Unit::Half if sizes.in_turns => &[Tile::Small, Tile::Wgmma, Tile::PingPong],
        Unit::Half => &[Tile::Small, Tile::Wgmma],
        Unit::Tf32 | Unit::Float => &[Tile::Small, Tile::Medium],
    };
    let all_tiles = sizes.k.div_ceil(Tile::Small.depth(unit)) * sizes.terms;
    let elements = (sizes.batch * sizes.m * sizes.n).max(1);
    let most = (all_tiles / LEAST_TILES).min(MOST_ELEMENTS / elements);
    let mut best = ProductPlan { tile: Tile::Small, splits: 1, copied: false };
    let mut least = f64::INFINITY;
    let may_copy = (1..=MOST_COPIED).contains(&sizes.unaligned);
    for splits in SPLITS.into_iter().filter(|n| *n == 1 || (sizes.may_split && *n <= most)) {
        for &tile in tiles {
            for copied in [false, true] {
                let is_possible =
                    if copied { may_copy } else { sizes.unaligned == 0 || tile == Tile::Small };
                let plan = ProductPlan { tile, splits, copied };
                let cycles = cycles(sizes, unit, plan);
                if is_possible && cycles < least {
                    (best, least) = (plan, cycles);
                }
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(m: usize, n: usize, k: usize, may_split: bool) -> Sizes {
        Sizes {
            m,
            n,
            k,
            batch: 1,
            terms: 1,
            unaligned: 0,
            both_transposed: false,
            may_split,
            warpgroups: false,
            in_turns: true,
            activates: false,
        }
    }

    fn plan(m: usize, n: usize, k: usize, may_split: bool) -> ProductPlan {
        choose(&sizes(m, n, k, may_split), Unit::Half)
    }

    #[test]
    fn large_products_take_large_tiles_whole() {
        let whole = ProductPlan { tile: Tile::Large, splits: 1, copied: false };
        assert_eq!(plan(4096, 4096, 4096, true), whole);
        assert_eq!(plan(8192, 3072, 768, true).splits, 1);
    }

    #[test]
    fn warpgroups_make_large_products_if_they_may() {
        for (m, n, k, tile) in [
            (4096, 4096, 4096, Tile::Wgmma),
            (8192, 3072, 768, Tile::PingPong),
            (4096, 256, 1024, Tile::PingPong),
            (64, 64, 64, Tile::Small),
        ] {
            let sizes = Sizes { warpgroups: true, ..sizes(m, n, k, false) };
            assert_eq!(choose(&sizes, Unit::Half).tile, tile, "{m} x {n} x {k}");
            let in_turns = Sizes { in_turns: false, ..sizes };
            assert_ne!(choose(&in_turns, Unit::Half).tile, Tile::PingPong);
            let transposed = Sizes { both_transposed: true, ..sizes };
            assert_eq!(choose(&transposed, Unit::Half).tile, Tile::Small);
            assert_ne!(choose(&sizes, Unit::Float).tile, Tile::Wgmma);
        }
    }

    /// The faster tile for each size, measured on an H200; their times differ by 3 % or more.
    #[test]
    fn warpgroups_take_turns_where_that_was_faster() {
        for (m, n, k, tile) in [
            (4096, 4096, 4096, Tile::Wgmma),
            (8192, 8192, 8192, Tile::Wgmma),
            (8192, 1024, 4096, Tile::Wgmma),
            (8192, 768, 768, Tile::PingPong),
            (8192, 2304, 768, Tile::PingPong),
            (8192, 3072, 768, Tile::PingPong),
            (8192, 768, 3072, Tile::PingPong),
            (8192, 1024, 1024, Tile::PingPong),
            (8192, 4096, 1024, Tile::PingPong),
            (8192, 2048, 2048, Tile::PingPong),
        ] {
            let sizes = Sizes { warpgroups: true, ..sizes(m, n, k, false) };
            assert_eq!(choose(&sizes, Unit::Half).tile, tile, "{m} x {n} x {k}");
        }
    }

    #[test]
    fn an_activation_is_computed_while_others_multiply() {
        let sizes = Sizes { warpgroups: true, activates: true, ..sizes(8192, 4096, 4096, false) };
        assert_eq!(choose(&sizes, Unit::Half).tile, Tile::PingPong);
    }

    #[test]
    fn a_long_sum_for_few_elements_is_split() {
        let plan = plan(768, 768, 32768, true);
        let (rows, columns) = plan.tile.size();
        let blocks = (768 / rows) * (768 / columns) * plan.splits;
        assert!(plan.splits > 1 && blocks >= 66, "{plan:?}: {blocks} blocks");
    }

    #[test]
    fn a_multiprocessor_is_not_left_with_one_block_of_4_warps() {
        let of = |splits| ProductPlan { tile: Tile::Medium, splits, copied: false };
        // 108 blocks; each of the 132 multiprocessors holds two.
        let product = sizes(2304, 768, 8192, true);
        assert!(cycles(&product, Unit::Half, of(2)) < cycles(&product, Unit::Half, of(1)));
        let plan = choose(&product, Unit::Half);
        assert!(plan.splits > 1, "{plan:?}");
        // One block more than all multiprocessors hold takes an extra round.
        let time = |n: usize| cycles(&sizes(128, 128 * n, 4096, false), Unit::Half, of(1));
        assert!(time(265) - time(264) > 1.5 * (time(264) - time(132)));
    }

    #[test]
    fn what_may_not_be_split_is_not() {
        assert_eq!(plan(64, 64, 1 << 20, false).splits, 1);
        let small = ProductPlan { tile: Tile::Small, splits: 1, copied: false };
        assert_eq!(plan(1, 1, 1, true), small);
    }

    #[test]
    fn few_elements_take_small_tiles() {
        assert_eq!(plan(256, 512, 1024, false).tile, Tile::Small);
    }

    #[test]
    fn the_gradients_of_odd_vocabularies_take_large_tiles() {
        for vocabulary in [30522, 50257, 50265] {
            let unaligned = 4096 * vocabulary;
            let sizes = [sizes(4096, 768, vocabulary, true), sizes(vocabulary, 768, 4096, true)];
            for sizes in sizes.map(|sizes| Sizes { unaligned, ..sizes }) {
                for (unit, tile) in [
                    (Unit::Half, Tile::Large),
                    (Unit::Tf32, Tile::Medium),
                    (Unit::Float, Tile::Medium),
                ] {
                    let plan = choose(&sizes, unit);
                    assert!(plan.copied && plan.tile == tile, "{vocabulary}, {unit:?}: {plan:?}");
                    let aligned = choose(&Sizes { unaligned: 0, ..sizes }, unit);
                    let slower = cycles(&sizes, unit, plan) / cycles(&sizes, unit, aligned);
                    assert!(slower < 1.5, "{vocabulary}, {unit:?}: {slower} times as long");
                }
            }
        }
    }

    #[test]
    fn small_operands_are_read_as_they_are() {
        let sizes = Sizes { unaligned: 33 * 5, ..sizes(33, 17, 5, true) };
        assert!(!choose(&sizes, Unit::Half).copied);
        let sizes = Sizes { unaligned: MOST_COPIED + 1, ..sizes };
        assert_eq!(choose(&sizes, Unit::Half).tile, Tile::Small);
    }
}
