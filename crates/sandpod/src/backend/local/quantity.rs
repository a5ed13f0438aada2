//! Parses Kubernetes resource quantities for local sandboxes.

use crate::Result;
use crate::config::refused;

const UNITS: [(&str, u64); 9] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("", 1),
];

/// Parses an amount of memory such as `512Mi` to bytes.
pub(super) fn bytes(text: &str) -> Result<u64> {
    let amount = UNITS.iter().find_map(|(unit, size)| {
        text.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(*size).filter(|bytes| *bytes > 0)
    });
    amount
        .ok_or_else(|| refused(&format!("{text:?} is not an amount of memory"), "Write it as 512Mi or 2Gi."))
}

/// Parses an amount of CPU such as `1500m` or `2` to millicores.
pub(super) fn thousandths(text: &str) -> Result<u32> {
    let whole = || text.parse::<u32>().ok()?.checked_mul(1000);
    let amount = text.strip_suffix('m').map_or_else(whole, |thousandths| thousandths.parse().ok());
    // The kernel's smallest CPU quota is a hundredth of a CPU.
    amount.filter(|amount| *amount >= 10).ok_or_else(|| {
        refused(
            &format!("{text:?} is not an amount of CPU time"),
            "Write it as 1500m or 2; the least is 10m.",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_parsed_as_in_kubernetes() {
        let read = ["512Mi", "2Gi", "64Ki", "1G", "1000"].map(|text| bytes(text).unwrap());
        assert_eq!(read, [512 << 20, 2 << 30, 64 << 10, 1_000_000_000, 1000]);
        assert_eq!(["1500m", "2", "10m"].map(|text| thousandths(text).unwrap()), [1500, 2000, 10]);
    }

    #[test]
    fn an_invalid_quantity_is_rejected_with_an_example() {
        for text in ["", "0", "much", "1.5Gi", "-1", "99999999999Ti", "1 Gi"] {
            assert!(bytes(text).unwrap_err().to_string().contains("512Mi"), "{text}");
        }
        for text in ["", "m", "9m", "0.5", "99999999999"] {
            assert!(thousandths(text).unwrap_err().to_string().contains("1500m"), "{text}");
        }
    }
}
