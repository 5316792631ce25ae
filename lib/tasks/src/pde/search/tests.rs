use super::*;

/// States are numbers. Candidate n of a state x is x + n, except that from 3 on all candidates equal x. The reward of a
/// step is its length, hence 0 for steps within this trap.
struct Walk;

impl World for Walk {
    fn candidates(
        &self,
        nodes: &[Node],
        _: usize,
        numbers: &[u64],
        count: usize,
    ) -> Result<Vec<Vec<Node>>> {
        let of = |(node, first): (&Node, &u64)| -> Vec<Node> {
            let next = |number: u64| {
                let x = node.latent[0];
                let x = if x >= 3.0 { x } else { x + number as f32 };
                Node { rollout: node.rollout, latent: vec![x], field: Vec::new() }
            };
            // Candidates of further paths have the same values.
            (*first..*first + count as u64).map(|n| next(n % count as u64)).collect()
        };
        Ok(nodes.iter().zip(numbers).map(of).collect())
    }

    fn decode(&self, nodes: &mut [Node]) -> Result<()> {
        nodes.iter_mut().for_each(|node| node.field.clone_from(&node.latent));
        Ok(())
    }

    fn rewards(&self, steps: &[(&Node, &Node)]) -> Result<Vec<f64>> {
        Ok(steps.iter().map(|(from, to)| f64::from(to.field[0] - from.field[0])).collect())
    }
}

fn start(rollouts: usize) -> Vec<Node> {
    (0..rollouts).map(|rollout| Node { rollout, latent: vec![0.0], field: vec![0.0] }).collect()
}

const TRUTH: [f32; 1] = [1.0];

fn run(search: Search, rollouts: usize, steps: usize, choice: Choice) -> Vec<Searched> {
    search.rollout(&Walk, start(rollouts), steps, choice, |_, _| &TRUTH[..]).unwrap()
}

fn path(searched: &Searched) -> Vec<f32> {
    searched.states.iter().map(|node| node.latent[0]).collect()
}

fn search(candidates: usize, beam: usize, horizon: usize) -> Search {
    let reward = Reward::default();
    let (budget, margin, discount, penalty) = (None, None, 1.0, 0.0);
    Search { candidates, beam, horizon, budget, margin, discount, reward, penalty }
}

/// With four candidates, the best single step leads into the trap at 3; with look-ahead, 2 and then 3 is better.
#[test]
fn looking_ahead_avoids_the_trap() {
    assert_eq!(path(&run(search(4, 1, 1), 1, 3, Choice::Reward)[0]), [3.0, 3.0, 3.0]);
    assert_eq!(path(&run(search(4, 2, 2), 1, 1, Choice::Reward)[0]), [2.0]);
    // A beam of one path misses it.
    assert_eq!(path(&run(search(4, 1, 2), 1, 1, Choice::Reward)[0]), [3.0]);
    // With a discount of 0, later steps do not matter.
    let blind = Search { discount: 0.0, ..search(4, 2, 2) };
    assert_eq!(path(&run(blind, 1, 1, Choice::Reward)[0]), [3.0]);
    // Look-ahead is skipped if the best candidate leads by the margin.
    let certain = Search { margin: Some(0.5), ..search(4, 2, 2) };
    let found = run(certain, 1, 1, Choice::Reward);
    assert_eq!((path(&found[0]), found[0].scored), (vec![3.0], 4));
}

#[test]
fn the_budget_is_never_exceeded() {
    for budget in 1..40 {
        for (candidates, beam, horizon) in [(4, 1, 1), (3, 2, 2), (2, 2, 3)] {
            let limited = Search { budget: Some(budget), ..search(candidates, beam, horizon) };
            for found in run(limited, 3, 5, Choice::Reward) {
                assert!(found.scored <= budget, "{limited:?}: {}", found.scored);
                assert_eq!(found.states.len(), 5);
                // The budget is spent as far as whole searches fit.
                let cost = candidates * (1 + (horizon - 1) * beam);
                let full = budget / cost * cost;
                assert!(found.scored >= full.min(5 * cost), "{limited:?}: {}", found.scored);
            }
        }
    }
}

#[test]
fn oracle_and_mean_are_what_they_say() {
    // The truth is 1 at every step; the oracle reaches it and stays.
    let oracle = run(search(4, 1, 1), 2, 3, Choice::Oracle);
    assert_eq!(path(&oracle[1]), [1.0, 1.0, 1.0]);
    assert_eq!(path(&run(search(4, 1, 1), 1, 2, Choice::Mean)[0]), [1.5, 3.0]);
    // Rewards and errors of the candidates 0, 1, 2, 3.
    let found = run(search(4, 1, 1), 1, 1, Choice::Reward);
    assert_eq!(found[0].candidates[0], [[0.0, 1.0], [1.0, 0.0], [2.0, 1.0], [3.0, 2.0]]);
}

/// Non-finite candidates are never chosen while there are finite ones.
#[test]
fn numbers_that_are_not_finite_lose() {
    assert_eq!(best([f64::NAN, 1.0, f64::NEG_INFINITY].into_iter()), 1);
    assert_eq!(best([2.0, f64::NAN].into_iter()), 0);
    assert_eq!(best([f64::NAN; 3].into_iter()), 0);
}
