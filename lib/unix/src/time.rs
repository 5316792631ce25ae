//! Parses and formats durations in SLURM's and other notations, formats UTC times, and records the start time of the
//! process.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::{Error, Result};

static START: OnceLock<Instant> = OnceLock::new();

pub(crate) fn mark_process_start() {
    process_start();
}

/// Returns the start time of the process, as recorded by [`cli::main`](crate::cli::main); time limits count from it.
pub fn process_start() -> Instant {
    *START.get_or_init(Instant::now)
}

/// Parses a duration: seconds (`300`), units (`90s`, `5m`, `1h30m`, `2d`), or SLURM's forms `minutes:seconds`,
/// `hours:minutes:seconds` and `days-hours[:minutes[:seconds]]`. Errors: 2, with examples of valid forms.
pub fn parse_duration(text: &str) -> Result<Duration> {
    let parsed = if text.contains([':', '-']) { clock(text) } else { number(text) };
    let units = || humantime::parse_duration(text).ok();
    parsed.map(Duration::from_secs).or_else(units).ok_or_else(|| {
        Error::usage(format!("{text:?} is not a duration; write 24:00:00, 1-02:03:04, 90m or 300"))
    })
}

/// Like [`parse_duration`], but also accepts `UNLIMITED`, `unlimited` or `none` for no limit.
pub fn parse_limit(text: &str) -> Result<Option<Duration>> {
    match text {
        "UNLIMITED" | "unlimited" | "none" => Ok(None),
        text => parse_duration(text).map(Some),
    }
}

/// Parses `1-02:03:04`, `02:03:04` or `03:04` to seconds; after `days-`, the first number is hours.
fn clock(text: &str) -> Option<u64> {
    let (days, rest) = match text.split_once('-') {
        Some((days, rest)) => (Some(number(days)?), rest),
        None => (None, text),
    };
    let numbers = rest.split(':').map(number).collect::<Option<Vec<u64>>>()?;
    let (hours, minutes, seconds) = match (days, numbers.as_slice()) {
        (_, [hours, minutes, seconds]) => (*hours, *minutes, *seconds),
        (Some(_), [hours, minutes]) => (*hours, *minutes, 0),
        (Some(_), [hours]) => (*hours, 0, 0),
        (None, [minutes, seconds]) => (0, *minutes, *seconds),
        _ => return None,
    };
    let hours = days.unwrap_or(0).checked_mul(24)?.checked_add(hours)?;
    hours.checked_mul(60)?.checked_add(minutes)?.checked_mul(60)?.checked_add(seconds)
}

/// Parses a number of digits only: `u64::from_str` would also accept a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Formats a duration in SLURM's notation, rounded down to seconds: `00:05:00`, `1-02:03:04`.
pub fn format_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (days, seconds) = (seconds / 86_400, seconds % 86_400);
    let clock = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
    if days > 0 { format!("{days}-{clock}") } else { clock }
}

/// Returns the current time in whole seconds since 1970, UTC.
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Returns the current time in UTC, such as `2026-11-20T21:53:37.123Z`.
pub fn now_utc() -> String {
    format_utc(SystemTime::now())
}

/// Formats a time as RFC 3339 in UTC with milliseconds; times before 1970 are shown as 1970.
pub fn format_utc(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time.max(UNIX_EPOCH)).to_string()
}

/// Parses a time formatted by [`format_utc`] to seconds since 1970.
pub fn parse_utc(text: &str) -> Option<f64> {
    let time = humantime::parse_rfc3339(text).ok()?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_people_and_slurm_write_them() {
        let cases = [
            ("300", 300),
            ("0", 0),
            ("90s", 90),
            ("5m", 300),
            ("90m", 5400),
            ("1h30m", 5400),
            ("2d", 172_800),
            ("4:56", 296),
            ("24:00:00", 86_400),
            ("1-02:03:04", 93_784),
            ("1-12", 129_600),
            ("1-12:30", 131_400),
        ];
        for (text, seconds) in cases {
            assert_eq!(parse_duration(text).unwrap(), Duration::from_secs(seconds), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_a_hint() {
        let nonsense = [
            "",
            " ",
            "-",
            ":",
            "5x",
            "m",
            "1-",
            "-1",
            "+5",
            "1:2:3:4",
            "1h30",
            "INVALID",
            "NOT_SET",
            "99999999999999999999",
            "18446744073709551615d",
            "٣",
            "1-2-3",
            "é",
        ];
        for text in nonsense {
            let error = parse_duration(text).expect_err(text);
            assert!(error.to_string().contains("24:00:00"), "{error}");
        }
    }

    #[test]
    fn no_limit_has_words() {
        assert_eq!(parse_limit("UNLIMITED").unwrap(), None);
        assert_eq!(parse_limit("none").unwrap(), None);
        assert_eq!(parse_limit("1:00").unwrap(), Some(Duration::from_secs(60)));
        assert!(parse_limit("INVALID").is_err());
    }

    #[test]
    fn formatting_is_read_back() {
        for seconds in [0, 59, 60, 3599, 86_399, 86_400, 93_784, 8_640_000] {
            let text = format_duration(Duration::from_secs(seconds));
            assert_eq!(parse_duration(&text).unwrap().as_secs(), seconds, "{text}");
        }
        assert_eq!(format_duration(Duration::from_secs(93_784)), "1-02:03:04");
    }

    #[test]
    fn utc_against_date_of_coreutils() {
        for seconds in [0, 951_782_400, 951_868_799, 1_709_164_800, 4_107_542_399, 1_795_211_617] {
            let argument = format!("@{seconds}");
            let date = std::process::Command::new("date")
                .args(["-u", "-d", &argument, "+%Y-%m-%dT%H:%M:%S.000Z"])
                .output()
                .unwrap();
            let ours = format_utc(UNIX_EPOCH + Duration::from_secs(seconds));
            assert_eq!(ours, String::from_utf8(date.stdout).unwrap().trim());
            assert_eq!(parse_utc(&ours), Some(seconds as f64));
        }
    }
}
