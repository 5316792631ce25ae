use super::Random;
use crate::space::Space;
use crate::trial::Point;

/// A random point.
pub fn suggest(space: &Space, random: &mut Random) -> Point {
    let mut point = Point::new();
    random.complete(space, &mut point);
    point
}
