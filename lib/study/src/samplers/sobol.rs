use crate::space::Space;
use crate::trial::Point;
use sobol_burley::{NUM_DIMENSIONS, sample};

/// More parameters than the sequence has dimensions.
pub fn violations(space: &Space) -> Vec<(String, String)> {
    let limit = NUM_DIMENSIONS as usize;
    let beyond = space.order().into_iter().skip(limit).map(str::to_string);
    let text = format!("the Sobol sequence has {limit} dimensions, and there are more parameters");
    beyond.map(|name| (name, text.clone())).collect()
}

/// Point `number` of the sequence; the dimension of a parameter is its place in the order of the space, whether it is
/// active or not.
pub fn suggest(space: &Space, number: u64, seed: u64) -> Point {
    let mut point = Point::new();
    // The sequence has 65536 points for a seed.
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
