use crate::space::{Parameter, Space};
use crate::trial::Point;

/// Most values of a parameter.
const MOST: u64 = 10_000;

/// Parameters with too many values.
pub fn violations(space: &Space) -> Vec<(String, String)> {
    let text = |parameter: &Parameter| match parameter.domain().count() {
        Some(count) if count <= MOST => None,
        Some(count) => {
            Some(format!("has {count} values; a grid takes at most {MOST}: give a larger step"))
        }
        None => {
            Some("has infinitely many values; a grid needs a step, or kind: categorical".into())
        }
    };
    let named = |(name, parameter): (&String, &Parameter)| Some((name.clone(), text(parameter)?));
    space.0.iter().filter_map(named).collect()
}

/// Combination `number`: the last parameter in the order of the space changes fastest.
pub fn suggest(space: &Space, number: u64) -> Option<Point> {
    nth(space, &space.order(), &mut Point::new(), &mut { number })
}

/// Combination `left` of the parameters `names` after `point`; otherwise subtracts their number from `left`.
fn nth(space: &Space, names: &[&str], point: &mut Point, left: &mut u64) -> Option<Point> {
    let Some((name, rest)) = names.split_first() else {
        return match left.checked_sub(1) {
            None => Some(point.clone()),
            Some(less) => {
                *left = less;
                None
            }
        };
    };
    if !space.is_active(name, point) {
        return nth(space, rest, point, left);
    }
    let found = space.0[*name].domain().values()?.find_map(|value| {
        point.insert(name.to_string(), value);
        nth(space, rest, point, left)
    });
    point.remove(*name);
    found
}
