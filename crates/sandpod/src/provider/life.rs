//! Expiry and states of sandboxes.

use std::str::FromStr;
use std::time::{Duration, SystemTime};

use super::activity;
use crate::backend::{PlaceState, Record};
use crate::error::any_of;
use crate::{Error, Result};

/// The time after which an unfinished creation counts as abandoned.
const ABANDONED: Duration = Duration::from_secs(3600);

/// The state of a sandbox.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Status {
    /// It can be used.
    Running,
    /// It waits in a warm pool.
    Warm,
    /// It has no Pod until it is resumed. Files on its volumes stay; its idle time to live does not run.
    Suspended,
    /// It is being created.
    Pending,
    /// It has expired, its place is lost, or its creation took more than an hour.
    Terminated,
}

impl Status {
    /// All statuses.
    pub const ALL: [Self; 5] = [Self::Running, Self::Warm, Self::Suspended, Self::Pending, Self::Terminated];

    /// Its name: `running`, `warm`, `suspended`, `pending` or `terminated`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Warm => "warm",
            Self::Suspended => "suspended",
            Self::Pending => "pending",
            Self::Terminated => "terminated",
        }
    }
}

impl FromStr for Status {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == name).ok_or_else(|| {
            let next = format!("Use {}.", any_of(&Self::ALL.map(Self::as_str)));
            Error::invalid(format!("There is no status '{}'.", name.escape_debug()), next)
        })
    }
}

impl Record {
    pub(crate) fn status(&self, now: SystemTime) -> Status {
        if self.place_state == PlaceState::Warm {
            Status::Warm
        } else if !matches!(self.place_state, PlaceState::Alive | PlaceState::Suspended)
            || self.has_expired(None, now)
        {
            Status::Terminated
        } else if self.place_state == PlaceState::Suspended {
            Status::Suspended
        } else if self.created_at.is_some() {
            Status::Running
        } else if self.is_abandoned(now) {
            Status::Terminated
        } else {
            Status::Pending
        }
    }

    /// Returns whether its place is lost before its time is up.
    pub(crate) fn is_lost(&self, now: SystemTime) -> bool {
        self.place_state == PlaceState::Lost && !self.is_collectable(None, now)
    }

    /// Returns the time of the last recorded use, or of its creation.
    pub(crate) fn used_at(&self) -> Option<SystemTime> {
        self.last_activity.max(self.created_at)
    }

    /// Returns the time at which it expires without another use. None: never.
    pub(crate) fn expires_at(&self, max_idle: Option<Duration>) -> Option<SystemTime> {
        let end = self.ttl.and_then(|ttl| self.created_at?.checked_add(ttl));
        // The idle time to live does not run while a sandbox is suspended.
        let idle = max_idle.or(self.idle_ttl).filter(|_| self.place_state != PlaceState::Suspended);
        let idle_end = idle.and_then(|idle| self.used_at()?.checked_add(idle));
        let idle_end = idle_end.and_then(|end| end.checked_add(self.doubt(idle)));
        [end, idle_end].into_iter().flatten().min()
    }

    /// Returns the time by which its record may be late. It is zero for an idle time of zero, because then the last use
    /// does not matter.
    fn doubt(&self, idle: Option<Duration>) -> Duration {
        if idle == Some(Duration::ZERO) { Duration::ZERO } else { activity::doubt(self.idle_ttl) }
    }

    /// Returns whether it was certainly idle for `threshold`.
    pub(crate) fn is_idle(&self, threshold: Duration, now: SystemTime) -> bool {
        let unused = self.used_at().and_then(|used| now.duration_since(used).ok());
        unused.is_some_and(|unused| unused >= threshold.saturating_add(self.doubt(Some(threshold))))
    }

    pub(crate) fn has_expired(&self, max_idle: Option<Duration>, now: SystemTime) -> bool {
        self.expires_at(max_idle).is_some_and(|end| end <= now)
    }

    /// Returns whether its record shows no use for `max_idle`. It may have been used since the last write.
    pub(crate) fn may_be_idle(&self, max_idle: Duration, now: SystemTime) -> bool {
        let is_in_use = self.place_state == PlaceState::Alive && self.created_at.is_some();
        is_in_use && self.used_at().and_then(|used| used.checked_add(max_idle)).is_some_and(|end| end <= now)
    }

    /// Returns whether its creation counts as abandoned.
    fn is_abandoned(&self, now: SystemTime) -> bool {
        let end = self.made_at.and_then(|made| made.checked_add(ABANDONED));
        self.created_at.is_none() && end.is_some_and(|end| end <= now)
    }

    /// Returns whether a cleanup deletes it: it has expired, or its creation was abandoned. A sandbox whose place is
    /// lost stays, because its owner may request a new place under its id.
    pub(crate) fn is_collectable(&self, max_idle: Option<Duration>, now: SystemTime) -> bool {
        self.place_state == PlaceState::Ended || self.is_abandoned(now) || self.has_expired(max_idle, now)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::backend::Facts;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
    }

    #[expect(clippy::unnecessary_wraps, reason = "the fields are optional")]
    fn seconds(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    /// A sandbox that was handed out at 0.
    fn record() -> Record {
        Record {
            id: "a".parse().unwrap(),
            uid: String::new(),
            namespace: String::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            generation: 1,
            made_at: Some(at(0)),
            created_at: Some(at(0)),
            last_activity: None,
            ttl: None,
            idle_ttl: None,
            place_state: PlaceState::Alive,
            guest: None,
            facts: Facts::default(),
            version: String::new(),
        }
    }

    #[test]
    fn unknown_status_error_lists_all_statuses() {
        for status in Status::ALL {
            assert_eq!(status.as_str().parse::<Status>().unwrap(), status);
        }
        assert_eq!(
            "lost".parse::<Status>().unwrap_err().to_string(),
            "There is no status 'lost'. Use 'running', 'warm', 'suspended', 'pending' or 'terminated'."
        );
    }

    #[test]
    fn sandbox_without_a_time_to_live_never_expires() {
        assert_eq!(record().status(at(1 << 30)), Status::Running);
        assert!(!record().is_collectable(None, at(1 << 30)));
    }

    #[test]
    fn time_to_live_starts_when_the_sandbox_is_handed_out() {
        let record = Record { ttl: seconds(10), ..record() };
        assert_eq!(record.status(at(9)), Status::Running);
        assert_eq!(record.status(at(10)), Status::Terminated);
        assert!(record.is_collectable(None, at(10)));
        let pending = Record { created_at: None, ..record };
        assert_eq!(pending.status(at(100)), Status::Pending);
    }

    #[test]
    fn idle_time_starts_at_the_last_use_or_at_creation() {
        let unused = Record { idle_ttl: seconds(30), ..record() };
        assert!(!unused.is_collectable(None, at(39)) && unused.is_collectable(None, at(40)));
        let used = Record { last_activity: Some(at(5)), ..unused };
        assert!(!used.is_collectable(None, at(44)) && used.is_collectable(None, at(45)));
        let both = Record { ttl: seconds(12), ..used };
        assert!(!both.is_collectable(None, at(11)) && both.is_collectable(None, at(12)));
    }

    #[test]
    fn idle_time_of_a_cleanup_replaces_that_of_the_sandbox() {
        let record = Record { idle_ttl: seconds(30), last_activity: Some(at(100)), ..record() };
        assert!(record.is_collectable(seconds(5), at(115)));
        assert!(!record.is_collectable(seconds(50), at(145)));
        let without = Record { idle_ttl: None, last_activity: None, ..record };
        assert!(!without.is_collectable(seconds(5), at(94)) && without.is_collectable(seconds(5), at(95)));
        assert!(without.is_collectable(seconds(0), at(0)));
    }

    #[test]
    fn sandbox_without_a_recorded_use_may_be_idle() {
        let record = Record { last_activity: Some(at(100)), ..record() };
        let may_be_idle = |record: &Record, now| record.may_be_idle(Duration::from_secs(5), at(now));
        assert!(!may_be_idle(&record, 104) && may_be_idle(&record, 105));
        assert!(may_be_idle(&Record { last_activity: None, ..record.clone() }, 5), "it was never used");
        for in_no_use in [
            Record { created_at: None, ..record.clone() },
            Record { place_state: PlaceState::Suspended, ..record.clone() },
            Record { place_state: PlaceState::Lost, ..record.clone() },
        ] {
            assert!(!may_be_idle(&in_no_use, 1000));
        }
    }

    #[test]
    fn sandbox_is_idle_only_after_the_delay_of_its_record() {
        let without = Record { last_activity: Some(at(100)), ..record() };
        let is_idle = |record: &Record, now| record.is_idle(Duration::from_secs(60), at(now));
        assert!(!is_idle(&without, 249) && is_idle(&without, 250));
        let with = Record { idle_ttl: seconds(300), ..without };
        assert!(!is_idle(&with, 189) && is_idle(&with, 190));
        assert!(with.is_idle(Duration::ZERO, at(100)));
    }

    #[test]
    fn ended_sandboxes_are_collected_and_lost_ones_are_kept() {
        let ended = Record { place_state: PlaceState::Ended, ..record() };
        assert_eq!((ended.status(at(1)), ended.is_collectable(None, at(1))), (Status::Terminated, true));
        let lost = Record { place_state: PlaceState::Lost, ..record() };
        assert_eq!((lost.status(at(1)), lost.is_collectable(None, at(1))), (Status::Terminated, false));
        assert_eq!(
            (lost.is_lost(at(1)), ended.is_lost(at(1)), record().is_lost(at(1))),
            (true, false, false)
        );
        assert!(!Record { ttl: seconds(1), ..lost }.is_lost(at(1)), "its time is up");
    }

    #[test]
    fn suspended_sandbox_is_not_idle_but_its_ttl_continues() {
        let suspended = Record {
            place_state: PlaceState::Suspended,
            idle_ttl: seconds(10),
            ttl: seconds(100),
            ..record()
        };
        assert_eq!(suspended.status(at(99)), Status::Suspended);
        assert!(!suspended.is_collectable(seconds(1), at(99)));
        assert_eq!(suspended.status(at(100)), Status::Terminated);
        assert!(suspended.is_collectable(None, at(100)));
    }

    #[test]
    fn abandoned_creation_is_collected_after_an_hour() {
        let pending = Record { created_at: None, ..record() };
        assert_eq!(
            (pending.status(at(3599)), pending.is_collectable(None, at(3599))),
            (Status::Pending, false)
        );
        assert_eq!(
            (pending.status(at(3600)), pending.is_collectable(None, at(3600))),
            (Status::Terminated, true)
        );
    }
}
