//! The price per hour of a run.

use super::record;
use crate::run_dir::RunDir;
use crate::site;

/// The variable with the price, in a site file or in the environment.
const VARIABLE: &str = "LONGHAUL_RATE_PER_HOUR";

/// Returns the price per hour of the whole job: `cost.rate_per_hour` of the configuration, else
/// `LONGHAUL_RATE_PER_HOUR` in the environment, in the site file that the run was submitted with, or in the environment
/// at the time of submission. `None` if it is unknown or 0.
pub fn rate_per_hour(run: &RunDir) -> Option<f64> {
    let configured = || run.read_config().ok()?.get("cost")?.get("rate_per_hour")?.as_f64();
    let exported = || std::env::var(VARIABLE).ok();
    let submitted = || {
        let submission = record::read(run).ok()??;
        let site = submission.site.and_then(|path| site::read(&path).ok()).unwrap_or_default();
        let mut variables = site.into_iter().chain(submission.variables);
        variables.find(|(name, _)| name == VARIABLE).map(|(_, value)| value)
    };
    let is_rate = |rate: &f64| *rate > 0.0 && rate.is_finite();
    let parse = |text: String| text.parse().ok().filter(is_rate);
    configured()
        .filter(is_rate)
        .or_else(|| exported().and_then(parse))
        .or_else(|| submitted().and_then(parse))
}
