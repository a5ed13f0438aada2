//! Tracks which calls of a session the client has acknowledged, so that their records can be dropped.

use std::collections::BTreeSet;
use std::ops::Bound;

use sandpod_protocol::limits;
use sandpod_protocol::v1::Operation;

/// Calls whose responses the client has received. A request for one of them is late, from a stream that was given up, and
/// is not run again.
#[derive(Debug, Default)]
pub(super) struct Acknowledged {
    up_to: u64,
    /// Calls up to there that are not acknowledged.
    except: BTreeSet<u64>,
}

impl Acknowledged {
    /// Updates the set from a call. An older call may arrive later and acknowledge fewer calls.
    pub(super) fn update(&mut self, operation: &Operation) {
        // A list that is cut off still acknowledges no call too many.
        let waiting: BTreeSet<u64> = operation.waiting.iter().copied().take(limits::MAX_WAITING).collect();
        let up_to = operation.answered_up_to.max(waiting.last().copied().unwrap_or_default());
        self.except.retain(|number| *number > up_to || waiting.contains(number));
        self.except.extend(waiting.range((Bound::Excluded(self.up_to), Bound::Unbounded)));
        self.up_to = self.up_to.max(up_to);
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        number <= self.up_to && !self.except.contains(&number)
    }

    /// Returns the highest acknowledged number.
    pub(super) fn up_to(&self) -> u64 {
        self.up_to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(answered_up_to: u64, waiting: &[u64]) -> Operation {
        Operation { answered_up_to, waiting: waiting.to_vec(), ..Operation::default() }
    }

    fn after(operations: &[Operation]) -> Vec<u64> {
        let mut acknowledged = Acknowledged::default();
        for operation in operations {
            acknowledged.update(operation);
        }
        (1..=10).filter(|number| acknowledged.contains(*number)).collect()
    }

    #[test]
    fn later_calls_are_acknowledged_although_an_older_one_is_not() {
        assert_eq!(after(&[operation(2, &[3, 6])]), [1, 2, 4, 5]);
        assert_eq!(after(&[operation(2, &[])]), [1, 2]);
        assert_eq!(after(&[operation(2, &[3, 6]), operation(5, &[6, 7])]), [1, 2, 3, 4, 5]);
        assert_eq!(after(&[operation(2, &[3, 6]), operation(7, &[8])]), [1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn acknowledged_calls_stay_so_whatever_arrives_later() {
        let (early, late) = (operation(0, &[1, 2, 3]), operation(0, &[1, 5]));
        let expected = [2, 3, 4];
        assert_eq!(after(&[early.clone(), late.clone()]), expected);
        assert_eq!(after(&[late, early]), expected);
    }

    #[test]
    fn invalid_lists_acknowledge_no_other_calls() {
        assert_eq!(after(&[operation(0, &[9, 2, 2])]), [1, 3, 4, 5, 6, 7, 8]);
        assert_eq!(after(&[operation(u64::MAX, &[]), operation(0, &[3])]).len(), 10);
        let long: Vec<u64> = (1..=2 * limits::MAX_WAITING as u64).map(|number| 2 * number).collect();
        let mut acknowledged = Acknowledged::default();
        acknowledged.update(&operation(0, &long));
        assert_eq!(
            (acknowledged.up_to(), acknowledged.except.len()),
            (2 * limits::MAX_WAITING as u64, limits::MAX_WAITING)
        );
    }
}
