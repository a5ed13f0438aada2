//! Lengths of time as people write them, and moments as they read them.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;

/// Units, largest first.
const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)];

/// A length such as `90`, `90s`, `15m` or `1h30m`; a number alone is seconds.
pub(crate) fn parse_length(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no length of time: write 90s, 15m, 1h30m or 2d");
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

/// The two largest units: `2d3h`, `5m12s`.
pub(crate) fn show_length(length: Duration) -> String {
    let mut left = length.as_secs();
    let mut parts = Vec::new();
    for (unit, seconds) in UNITS {
        if left >= seconds {
            parts.push(format!("{}{unit}", left / seconds));
            left %= seconds;
        }
    }
    if parts.is_empty() { "0s".to_owned() } else { parts[..parts.len().min(2)].concat() }
}

/// How long ago it was.
pub(crate) fn show_age(moment: Option<SystemTime>) -> String {
    moment.map_or_else(
        || "-".to_owned(),
        |moment| show_length(SystemTime::now().duration_since(moment).unwrap_or_default()),
    )
}

/// How far away it is.
pub(crate) fn show_left(moment: Option<SystemTime>) -> String {
    let left = |moment: SystemTime| match moment.duration_since(SystemTime::now()) {
        Ok(left) => format!("in {}", show_length(left)),
        Err(_) => "now".to_owned(),
    };
    moment.map_or_else(|| "never".to_owned(), left)
}

/// As RFC 3339 has it, to the second.
pub(crate) fn stamp(moment: SystemTime) -> Option<String> {
    let moment = Timestamp::try_from(moment).ok()?;
    Some(Timestamp::from_second(moment.as_second()).ok()?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_in_units() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("15m", 900), ("1h30m", 5400), ("2d", 172_800)] {
            assert_eq!(parse_length(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "h", "5x", "1h30", "-1", "99999999999999999999d", "184467440737095516d"] {
            let error = parse_length(wrong).unwrap_err();
            assert!(error.contains("1h30m"), "{error}");
        }
    }

    #[test]
    fn lengths_are_shown_in_the_two_largest_units() {
        for (seconds, shown) in [(0, "0s"), (59, "59s"), (312, "5m12s"), (183_845, "2d3h")] {
            assert_eq!(show_length(Duration::from_secs(seconds)), shown);
        }
    }

    #[test]
    fn moments_are_shown_to_the_second() {
        let moment = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_900);
        assert_eq!(stamp(moment).as_deref(), Some("2023-11-14T22:13:20Z"));
    }
}
