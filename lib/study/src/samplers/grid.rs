use crate::space::Space;
use crate::trial::Point;

/// Parameters with infinitely many values.
pub fn violations(space: &Space) -> Vec<(String, String)> {
    let endless = space.0.iter().filter(|(_, parameter)| parameter.domain().values().is_none());
    let text = "a grid needs finitely many values: give a step, or kind: categorical with choices";
    endless.map(|(name, _)| (name.clone(), text.to_string())).collect()
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
    let found = space.0[*name].domain().values()?.into_iter().find_map(|value| {
        point.insert(name.to_string(), value);
        nth(space, rest, point, left)
    });
    point.remove(*name);
    found
}
