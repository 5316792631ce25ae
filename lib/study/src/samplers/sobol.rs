use crate::space::Space;
use crate::trial::Point;
use sobol_burley::{NUM_DIMENSIONS, sample};

/// Finds parameters beyond the dimensions of the sequence.
pub fn violations(space: &Space) -> Vec<(String, String)> {
    let limit = NUM_DIMENSIONS as usize;
    let beyond = space.order().into_iter().skip(limit).map(str::to_string);
    let text =
        format!("the Sobol sequence has {limit} dimensions, but the space has more parameters");
    beyond.map(|name| (name, text.clone())).collect()
}

/// Returns point `number` of the sequence. The dimension of a parameter is its index in [`Space::order`], including
/// inactive parameters.
pub fn suggest(space: &Space, number: u64, seed: u64) -> Point {
    let mut point = Point::new();
    // The sequence has 65536 points per seed.
    let (index, round) = ((number & 0xffff) as u32, number >> 16);
    let seed = (seed ^ seed >> 32 ^ round) as u32;
    for (dimension, name) in (0..NUM_DIMENSIONS).zip(space.order()) {
        if space.is_active(name, &point) {
            let domain = space.0[name].domain();
            let (low, high) = domain.range();
            let place = low + (high - low) * f64::from(sample(index, dimension, seed));
            point.insert(name.to_string(), domain.at(place));
        }
    }
    point
}
