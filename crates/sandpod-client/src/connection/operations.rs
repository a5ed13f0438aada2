//! Operation numbers of mutating calls, and the records that the guest may delete.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandpod_protocol::limits;
use sandpod_protocol::v1::Operation;

/// Assigns numbers to the mutating calls of one session.
#[derive(Debug)]
pub(crate) struct Operations {
    session: String,
    numbers: Mutex<Numbers>,
}

#[derive(Debug, Default)]
struct Numbers {
    last: u64,
    open: BTreeSet<u64>,
}

impl Operations {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { session: uuid::Uuid::new_v4().to_string(), numbers: Mutex::default() })
    }

    pub(crate) fn session(&self) -> &str {
        &self.session
    }

    /// Assigns the next number.
    pub(crate) fn begin(self: &Arc<Self>) -> PendingOperation {
        let mut numbers = self.lock();
        numbers.last += 1;
        let number = numbers.last;
        numbers.open.insert(number);
        PendingOperation { operations: self.clone(), number, was_sent: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of one mutating call. After it is dropped, the guest may delete its record of the call.
#[derive(Debug)]
pub(crate) struct PendingOperation {
    operations: Arc<Operations>,
    pub(crate) number: u64,
    was_sent: AtomicBool,
}

impl PendingOperation {
    /// Returns the `Operation` for sending the call now.
    pub(crate) fn to_message(&self, repeated: bool) -> Operation {
        self.was_sent.store(true, Ordering::SeqCst);
        let numbers = self.operations.lock();
        Operation {
            session: self.operations.session.clone(),
            number: self.number,
            repeated,
            answered_up_to: numbers.open.first().map_or(numbers.last, |first| first - 1),
            waiting: numbers.open.iter().take(limits::MAX_WAITING).copied().collect(),
        }
    }

    /// Returns whether the call was sent.
    pub(crate) fn was_sent(&self) -> bool {
        self.was_sent.load(Ordering::SeqCst)
    }
}

impl Drop for PendingOperation {
    fn drop(&mut self) {
        self.operations.lock().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_may_delete_all_records_but_those_of_open_calls() {
        let operations = Operations::new();
        let (first, second, third) = (operations.begin(), operations.begin(), operations.begin());
        let said = |operation: &PendingOperation| {
            let operation = operation.to_message(false);
            (operation.answered_up_to, operation.waiting)
        };
        assert_eq!(said(&third), (0, vec![1, 2, 3]));
        drop(second);
        assert_eq!(said(&third), (0, vec![1, 3]));
        drop(first);
        assert_eq!(said(&third), (2, vec![3]));
        assert_eq!(third.number, 3);
    }

    #[test]
    fn only_the_first_open_calls_are_sent_to_the_guest() {
        let operations = Operations::new();
        let open: Vec<_> = (0..=limits::MAX_WAITING).map(|_| operations.begin()).collect();
        let waiting = open[limits::MAX_WAITING].to_message(false).waiting;
        assert!(waiting.into_iter().eq(1..=limits::MAX_WAITING as u64));
    }
}
