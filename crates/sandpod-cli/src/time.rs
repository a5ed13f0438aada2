//! Parses and formats durations and timestamps.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;

/// Units, largest first.
const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];

/// Nanoseconds per unit of a duration, longer names first.
const PARSED_UNITS: [(&str, u128); 5] = [
    ("ms", 1_000_000),
    ("d", 86_400_000_000_000),
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
];

/// Parses a duration such as `90`, `1.5s`, `500ms` or `1h30m`; a number without a unit is seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a duration such as 90s, 500ms, 1.5s, 1h30m or 2d");
    let (mut rest, mut nanos) = (text, 0_u128);
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
        let (number, after) = rest.split_at(digits);
        let (unit, size) = match PARSED_UNITS.iter().find(|(unit, _)| after.starts_with(unit)) {
            Some((unit, size)) => (*unit, *size),
            None if after.is_empty() && rest.len() == text.len() => ("", 1_000_000_000),
            None => return Err(wrong()),
        };
        let part = scaled(number, size).ok_or_else(wrong)?;
        nanos = nanos.checked_add(part).ok_or_else(wrong)?;
        rest = &after[unit.len()..];
    }
    let seconds = u64::try_from(nanos / 1_000_000_000).map_err(|_| wrong())?;
    let below = u32::try_from(nanos % 1_000_000_000).unwrap_or_default();
    if text.is_empty() { Err(wrong()) } else { Ok(Duration::new(seconds, below)) }
}

/// Multiplies a decimal number by a whole one.
fn scaled(number: &str, by: u128) -> Option<u128> {
    let (whole, fraction) =
        number.split_once('.').map_or((number, None), |(whole, below)| (whole, Some(below)));
    let whole = whole.parse::<u128>().ok()?.checked_mul(by)?;
    let Some(fraction) = fraction else { return Some(whole) };
    let places = u32::try_from(fraction.len()).ok().filter(|places| (1..=9).contains(places))?;
    whole.checked_add(fraction.parse::<u128>().ok()?.checked_mul(by)? / 10_u128.pow(places))
}

/// Parses the time to live of a sandbox, which is kept in seconds.
pub(crate) fn parse_lifetime(text: &str) -> Result<Duration, String> {
    let duration = parse_duration(text)?;
    if duration.subsec_nanos() == 0 {
        Ok(duration)
    } else {
        Err(format!("'{text}' has a fraction of a second"))
    }
}

/// Formats a duration in seconds: `90s`, `1.5s`.
pub(crate) fn format_seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs_f64())
}

/// Formats a duration in its two largest units: `2d3h`, `5m12s`.
pub(crate) fn format_duration(duration: Duration) -> String {
    let mut left = duration.as_secs();
    let mut parts = Vec::new();
    for (unit, seconds) in UNITS {
        if left >= seconds {
            parts.push(format!("{}{unit}", left / seconds));
            left %= seconds;
        }
    }
    if parts.is_empty() { "0s".to_owned() } else { parts[..parts.len().min(2)].concat() }
}

/// Formats the time since `moment`.
pub(crate) fn format_age(moment: Option<SystemTime>) -> String {
    moment.map_or_else(
        || "-".to_owned(),
        |moment| format_duration(SystemTime::now().duration_since(moment).unwrap_or_default()),
    )
}

/// Formats the time until or since `moment`.
pub(crate) fn format_remaining(moment: Option<SystemTime>) -> String {
    let left = |moment: SystemTime| match moment.duration_since(SystemTime::now()) {
        Ok(left) => format!("in {}", format_duration(left)),
        Err(passed) => format!("{} ago", format_duration(passed.duration())),
    };
    moment.map_or_else(|| "never".to_owned(), left)
}

/// Formats a moment by RFC 3339, in seconds.
pub(crate) fn timestamp(moment: SystemTime) -> Option<String> {
    let moment = Timestamp::try_from(moment).ok()?;
    Some(Timestamp::from_second(moment.as_second()).ok()?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_with_units() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("15m", 900), ("1h30m", 5400), ("2d", 172_800)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for (text, millis) in
            [("1.5s", 1500), ("500ms", 500), ("1m0.25s", 60_250), ("0.5", 500), ("1.5h", 5_400_000)]
        {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert!(parse_lifetime("1.5s").unwrap_err().contains("fraction"));
        assert_eq!(
            ["90", "1.5", "0.5"].map(|text| format_seconds(parse_duration(text).unwrap())),
            ["90s", "1.5s", "0.5s"]
        );
        for wrong in [
            "",
            "h",
            "5x",
            "1h30",
            "-1",
            ".5s",
            "1.s",
            "1.2.3s",
            "99999999999999999999d",
            "999999999999999999999999999999999999999d",
        ] {
            let error = parse_duration(wrong).unwrap_err();
            assert!(error.contains("1h30m"), "{error}");
        }
    }

    #[test]
    fn durations_are_formatted_in_the_two_largest_units() {
        for (seconds, shown) in [(0, "0s"), (59, "59s"), (312, "5m12s"), (183_845, "2d3h")] {
            assert_eq!(format_duration(Duration::from_secs(seconds)), shown);
        }
    }

    #[test]
    fn timestamps_are_formatted_in_seconds() {
        let moment = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_900);
        assert_eq!(timestamp(moment).as_deref(), Some("2023-11-14T22:13:20Z"));
    }
}
