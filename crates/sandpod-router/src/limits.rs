//! Limits of the requests in flight for one sandbox and for one caller.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use crate::access::Caller;
use crate::refusal::Refusal;
use crate::target::SandboxRef;

/// The limits of a router.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests in flight for one sandbox, open tunnels included.
    pub per_sandbox: usize,
    /// Requests in flight of one caller.
    pub per_caller: usize,
    /// Bytes of one request's body.
    pub body_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { per_sandbox: 512, per_caller: 4096, body_bytes: u64::MAX }
    }
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
enum Key {
    Sandbox(SandboxRef),
    Caller(Caller),
}

/// Counts requests in flight.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlight(Arc<Mutex<HashMap<Key, usize>>>);

/// Counts one request as in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct Admission {
    counts: InFlight,
    keys: [Key; 2],
}

impl InFlight {
    pub(crate) fn enter(
        &self,
        sandbox: &SandboxRef,
        caller: &Caller,
        limits: &Limits,
    ) -> Result<Admission, Refusal> {
        let sandbox = Key::Sandbox(sandbox.clone());
        let caller = Key::Caller(caller.clone());
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |key: &Key| counts.get(key).copied().unwrap_or_default();
        if count(&sandbox) >= limits.per_sandbox {
            return Err(Refusal::too_many("sandbox"));
        }
        // All anonymous callers are one: they have only the limit of the sandbox.
        if caller != Key::Caller(Caller::Anonymous) && count(&caller) >= limits.per_caller {
            return Err(Refusal::too_many("caller"));
        }
        let keys = [sandbox, caller];
        for key in &keys {
            *counts.entry(key.clone()).or_default() += 1;
        }
        drop(counts);
        Ok(Admission { counts: self.clone(), keys })
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock().unwrap_or_else(PoisonError::into_inner);
        for key in &self.keys {
            if let Entry::Occupied(mut entry) = counts.entry(key.clone()) {
                *entry.get_mut() -= 1;
                if *entry.get() == 0 {
                    entry.remove();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_until_it_ends() {
        let sandbox = SandboxRef::new("agents", "box");
        let limits = Limits { per_sandbox: 2, ..Limits::default() };
        let in_flight = InFlight::default();
        let enter = || in_flight.enter(&sandbox, &Caller::Anonymous, &limits);

        let (first, second) = (enter().unwrap(), enter().unwrap());
        assert_eq!(enter().unwrap_err().status, 429);
        drop(first);
        drop(enter().unwrap());
        drop(second);
        assert!(in_flight.0.lock().unwrap().is_empty(), "no entry is left of sandboxes without requests");
    }
}
