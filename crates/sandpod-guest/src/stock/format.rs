//! Formats of files and times in the APIs.

use std::time::{Duration, SystemTime};

use sandpod_protocol::v1::{FileInfo, FileKind};

/// Returns `directory` or `file`: clients know no other kinds.
pub(super) fn kind(info: &FileInfo) -> &'static str {
    if info.kind() == FileKind::Directory { "directory" } else { "file" }
}

/// Formats the modification time for HTTP.
pub(super) fn http_date(info: &FileInfo) -> String {
    let since = Duration::from_nanos(u64::try_from(info.modified_ns).unwrap_or_default());
    httpdate::fmt_http_date(SystemTime::UNIX_EPOCH + since)
}

/// Formats seconds since 1970 as RFC 3339.
pub(super) fn rfc3339(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Returns the date of a day since 1970. Years start in March, so that a leap day is the last of a year.
fn date(days: i64) -> (i64, i64, i64) {
    const ERA_DAYS: i64 = 146_097; // 400 years
    let days = days + 719_468; // since 0000-03-01
    let (era, day) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let (day, month) = (day_of_year - (153 * month + 2) / 5 + 1, (month + 2) % 12 + 1);
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_as_rfc_3339() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_799, "2000-02-29T23:59:59Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, text) in cases {
            assert_eq!(rfc3339(seconds), text);
        }
    }
}
