//! Which calls of a session need no record any more.

use std::collections::BTreeSet;
use std::ops::Bound;

use sandpod_protocol::limits;
use sandpod_protocol::v1::Operation;

/// The calls whose answers the client has: one of them that comes now comes late, on a stream that was given up, and is
/// not done again.
#[derive(Debug, Default)]
pub(super) struct Answered {
    up_to: u64,
    /// Not these, of all up to there.
    but: BTreeSet<u64>,
}

impl Answered {
    /// Learns what the client says with a call. An older call may arrive later and knows of less.
    pub(super) fn learn(&mut self, operation: &Operation) {
        // A longer list is as true without its end.
        let waiting: BTreeSet<u64> = operation.waiting.iter().copied().take(limits::MAX_WAITING).collect();
        let up_to = operation.answered_up_to.max(waiting.last().copied().unwrap_or_default());
        self.but.retain(|number| *number > up_to || waiting.contains(number));
        self.but.extend(waiting.range((Bound::Excluded(self.up_to), Bound::Unbounded)));
        self.up_to = self.up_to.max(up_to);
    }

    pub(super) fn has(&self, number: u64) -> bool {
        number <= self.up_to && !self.but.contains(&number)
    }

    /// No call after this one is among them.
    pub(super) fn up_to(&self) -> u64 {
        self.up_to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(answered_up_to: u64, waiting: &[u64]) -> Operation {
        Operation { answered_up_to, waiting: waiting.to_vec(), ..Operation::default() }
    }

    fn after(said: &[Operation]) -> Vec<u64> {
        let mut answered = Answered::default();
        for operation in said {
            answered.learn(operation);
        }
        (1..=10).filter(|number| answered.has(*number)).collect()
    }

    #[test]
    fn calls_that_nobody_waits_for_are_answered_although_an_older_one_is_not() {
        assert_eq!(after(&[said(2, &[3, 6])]), [1, 2, 4, 5]);
        assert_eq!(after(&[said(2, &[])]), [1, 2]);
        assert_eq!(after(&[said(2, &[3, 6]), said(5, &[6, 7])]), [1, 2, 3, 4, 5]);
        assert_eq!(after(&[said(2, &[3, 6]), said(7, &[8])]), [1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn what_was_answered_stays_so_whatever_arrives_later() {
        let (early, late) = (said(0, &[1, 2, 3]), said(0, &[1, 5]));
        let expected = [2, 3, 4];
        assert_eq!(after(&[early.clone(), late.clone()]), expected);
        assert_eq!(after(&[late, early]), expected);
    }

    #[test]
    fn nonsense_says_nothing_of_other_calls_than_it_names() {
        assert_eq!(after(&[said(0, &[9, 2, 2])]), [1, 3, 4, 5, 6, 7, 8]);
        assert_eq!(after(&[said(u64::MAX, &[]), said(0, &[3])]).len(), 10);
        let long: Vec<u64> = (1..=2 * limits::MAX_WAITING as u64).map(|number| 2 * number).collect();
        let mut answered = Answered::default();
        answered.learn(&said(0, &long));
        assert_eq!(
            (answered.up_to(), answered.but.len()),
            (2 * limits::MAX_WAITING as u64, limits::MAX_WAITING)
        );
    }
}
