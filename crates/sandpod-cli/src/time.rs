//! Parses and formats durations and timestamps.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;

/// Units, largest first.
const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];

/// Parses a duration such as `90`, `90s`, `15m` or `1h30m`; a number without a unit is seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a duration such as 90s, 15m, 1h30m or 2d");
    if let Ok(seconds) = text.parse() {
        return Ok(Duration::from_secs(seconds));
    }
    let (mut rest, mut seconds) = (text, 0_u64);
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let unit = UNITS.iter().find(|(unit, _)| after.starts_with(unit)).ok_or_else(wrong)?;
        let part = number.checked_mul(unit.1).ok_or_else(wrong)?;
        seconds = seconds.checked_add(part).ok_or_else(wrong)?;
        rest = &after[unit.0.len()..];
    }
    if text.is_empty() { Err(wrong()) } else { Ok(Duration::from_secs(seconds)) }
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

/// Formats the time until `moment`.
pub(crate) fn format_remaining(moment: Option<SystemTime>) -> String {
    let left = |moment: SystemTime| match moment.duration_since(SystemTime::now()) {
        Ok(left) => format!("in {}", format_duration(left)),
        Err(_) => "now".to_owned(),
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
        for wrong in ["", "h", "5x", "1h30", "-1", "99999999999999999999d", "184467440737095516d"] {
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
