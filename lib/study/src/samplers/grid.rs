use crate::space::{Parameter, Space};
use crate::trial::Point;

/// Maximum number of values of a parameter.
const MAX_VALUES: u64 = 10_000;

/// Finds parameters with too many values.
pub fn violations(space: &Space) -> Vec<(String, String)> {
    let text = |parameter: &Parameter| match parameter.domain().count() {
        Some(count) if count <= MAX_VALUES => None,
        Some(count) => {
            Some(format!("has {count} values; a grid takes at most {MAX_VALUES}: increase step"))
        }
        None => {
            Some("has infinitely many values; a grid needs a step, or kind: categorical".into())
        }
    };
    let named = |(name, parameter): (&String, &Parameter)| Some((name.clone(), text(parameter)?));
    space.0.iter().filter_map(named).collect()
}

/// Returns the number of points of the grid.
pub fn count(space: &Space) -> u64 {
    count_after(space, &space.order(), &mut Point::new())
}

/// Returns point `number` of the grid. The last parameter in [`Space::order`] varies fastest.
pub fn suggest(space: &Space, number: u64) -> Option<Point> {
    nth(space, &space.order(), &mut Point::new(), number)
}

/// Completes `point` with combination `left` of the parameters `names`.
fn nth(space: &Space, names: &[&str], point: &mut Point, mut left: u64) -> Option<Point> {
    let Some((name, rest)) = names.split_first() else {
        return (left == 0).then(|| point.clone());
    };
    if !space.is_active(name, point) {
        return nth(space, rest, point, left);
    }
    for value in space.0[*name].domain().values()? {
        point.insert(name.to_string(), value);
        let count = count_after(space, rest, point);
        if left < count {
            return nth(space, rest, point, left);
        }
        left -= count;
    }
    None
}

/// Counts the combinations of the parameters `names` that complete `point`.
fn count_after(space: &Space, names: &[&str], point: &mut Point) -> u64 {
    let Some((name, rest)) = names.split_first() else { return 1 };
    if !space.is_active(name, point) {
        return count_after(space, rest, point);
    }
    let domain = space.0[*name].domain();
    if !rest.iter().any(|later| space.0[*later].when().contains_key(*name)) {
        // No later parameter depends on this one, so the number of combinations is the same for every value.
        return domain.count().unwrap_or(0).saturating_mul(count_after(space, rest, point));
    }
    let mut count: u64 = 0;
    for value in domain.values().into_iter().flatten() {
        point.insert(name.to_string(), value);
        count = count.saturating_add(count_after(space, rest, point));
    }
    point.remove(*name);
    count
}
