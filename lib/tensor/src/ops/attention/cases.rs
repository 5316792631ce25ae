//! Attention test cases: one token, odd sizes, head sizes from 1, every layout and mask, with and without
//! normalization, and sequences shorter and longer than the tiles of the kernels.

use super::{Attention, Layout, Mask};
use crate::op::{Case, Draw};
use crate::ops::dropout::Dropout;

const NONE: Mask = Mask { causal: false, padding: false };
const CAUSAL: Mask = Mask { causal: true, padding: false };
const PADDED: Mask = Mask { causal: false, padding: true };
const BOTH: Mask = Mask { causal: true, padding: true };

/// Query heads, key/value heads, head size.
type Heads = [usize; 3];

/// Builds a case without dropout.
fn case(
    layout: Layout,
    mask: Mask,
    norm: bool,
    b: usize,
    tokens: [usize; 2],
    heads: Heads,
) -> Case {
    build(None, layout, mask, norm, b, tokens, heads)
}

/// Builds a case, with dropout of the attention probabilities if `dropped` is given.
fn build(
    dropped: Option<f64>,
    layout: Layout,
    mask: Mask,
    norm: bool,
    b: usize,
    tokens: [usize; 2],
    heads: Heads,
) -> Case {
    let [heads, kv_heads, d] = heads;
    let dropout = dropped.map(|p| Dropout { p, site: 1, samples: b });
    let qk_norm = norm.then_some(1e-6);
    let op = Attention { heads, kv_heads, layout, mask, qk_norm, dropout };
    let packed = (heads + 2 * kv_heads) * d;
    let mut shapes: Vec<Vec<usize>> = match layout {
        Layout::Packed => vec![vec![b, tokens[0], packed]],
        Layout::Separate => {
            let kv = vec![b, tokens[1], kv_heads * d];
            vec![vec![b, tokens[0], heads * d], kv.clone(), kv]
        }
        Layout::Joined => tokens.iter().map(|t| vec![b, *t, packed]).collect(),
    };
    shapes.resize(op.differentiated(), vec![d]);
    let (queries, keys, lengths) = match layout {
        Layout::Packed => (tokens[0], tokens[0], vec![b]),
        Layout::Separate => (tokens[0], tokens[1], vec![b]),
        Layout::Joined => (tokens[0] + tokens[1], tokens[0] + tokens[1], vec![b, 2]),
    };
    let last = shapes.len();
    if mask.padding {
        shapes.push(lengths);
    }
    if dropped.is_some() {
        shapes.push(vec![4]);
    }
    let counter = shapes.len() - 1;
    let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
    let mut case = Case::new(op, &shapes).flops(4 * b * heads * queries * keys * d);
    if mask.padding {
        case = case.draw(last, Draw::RandInt(keys as u64 + 1));
    }
    if dropped.is_some() { case.draw(counter, Draw::RandInt(1 << 31)) } else { case }
}

/// Returns test cases: one token, odd sizes, every layout and mask, several tiles of queries and keys.
pub fn cases() -> Vec<Case> {
    use Layout::{Joined, Packed, Separate};
    vec![
        case(Packed, NONE, false, 1, [1, 1], [1, 1, 1]),
        case(Packed, NONE, false, 2, [5, 5], [3, 3, 7]),
        case(Separate, NONE, false, 3, [9, 9], [2, 2, 4]),
        case(Packed, NONE, true, 2, [17, 17], [2, 2, 8]),
        case(Separate, NONE, true, 1, [33, 33], [2, 2, 12]),
        case(Packed, NONE, false, 64, [64, 64], [4, 4, 32]),
        case(Packed, NONE, true, 16, [128, 128], [8, 8, 32]),
        // Masks with equal numbers of queries and keys, more queries, and more keys.
        case(Packed, CAUSAL, false, 2, [9, 9], [2, 2, 8]),
        case(Packed, CAUSAL, true, 1, [150, 150], [2, 2, 16]),
        case(Separate, CAUSAL, false, 1, [70, 40], [1, 1, 16]),
        case(Separate, CAUSAL, true, 2, [3, 77], [2, 1, 24]),
        case(Packed, PADDED, false, 4, [21, 21], [2, 2, 8]),
        case(Packed, BOTH, true, 3, [90, 90], [2, 2, 8]),
        case(Separate, PADDED, true, 4, [19, 100], [2, 2, 16]),
        // Fewer key/value heads than query heads.
        case(Packed, NONE, false, 2, [11, 11], [6, 2, 5]),
        case(Packed, CAUSAL, true, 2, [67, 67], [4, 1, 16]),
        case(Packed, NONE, false, 1, [64, 64], [2, 1, 8]),
        case(Separate, PADDED, true, 6, [10, 13], [4, 2, 6]),
        // Joined sequences.
        case(Joined, NONE, false, 2, [3, 10], [2, 2, 8]),
        case(Joined, NONE, true, 1, [13, 70], [2, 1, 32]),
        case(Joined, PADDED, true, 3, [20, 33], [2, 1, 20]),
        case(Joined, PADDED, false, 4, [65, 64], [1, 1, 8]),
        // Every head size that has compiled kernels, head sizes that are padded to one of these, and several tiles of
        // queries and keys.
        case(Separate, NONE, false, 1, [130, 40], [1, 1, 64]),
        case(Separate, CAUSAL, false, 1, [40, 130], [2, 1, 48]),
        case(Packed, CAUSAL, false, 1, [110, 110], [1, 1, 36]),
        case(Packed, BOTH, true, 2, [66, 66], [1, 1, 72]),
        case(Separate, NONE, true, 1, [70, 66], [1, 1, 128]),
        case(Joined, PADDED, true, 2, [25, 40], [1, 1, 80]),
        case(Packed, NONE, false, 2, [1, 1], [1, 1, 100]),
        case(Packed, CAUSAL, false, 1, [300, 300], [4, 2, 64]),
        case(Packed, NONE, false, 1, [260, 260], [2, 2, 128]),
        case(Separate, BOTH, true, 1, [37, 150], [2, 1, 256]),
        case(Joined, PADDED, false, 2, [13, 30], [1, 1, 160]),
        // Warpgroup kernels on Hopper: several tiles of queries and keys, hidden keys, shared key/value heads.
        case(Packed, BOTH, false, 3, [140, 140], [2, 1, 64]),
        case(Separate, PADDED, true, 2, [70, 260], [2, 1, 128]),
        case(Separate, CAUSAL, false, 1, [150, 40], [2, 2, 128]),
        case(Packed, CAUSAL, true, 1, [70, 70], [1, 1, 133]),
        // Dropout, including p = 0, for every compiled head size.
        build(Some(0.0), Packed, NONE, false, 2, [5, 5], [3, 3, 7]),
        build(Some(0.2), Packed, NONE, false, 2, [17, 17], [2, 2, 8]),
        build(Some(0.5), Packed, BOTH, true, 3, [70, 70], [4, 2, 16]),
        build(Some(0.1), Joined, PADDED, false, 2, [5, 66], [1, 1, 32]),
        build(Some(0.1), Separate, NONE, false, 1, [130, 70], [1, 1, 64]),
        build(Some(0.1), Packed, CAUSAL, false, 1, [134, 134], [1, 1, 100]),
        build(Some(0.1), Separate, NONE, false, 1, [20, 67], [1, 1, 200]),
    ]
}
