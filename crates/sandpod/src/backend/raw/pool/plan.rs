//! Pure decisions about a pool: what to create, adopt and delete, and which Pod to take.

use std::collections::BTreeSet;

/// How many Pods of a pool are started at once, to spare the nodes.
pub(super) const MAX_STARTING: usize = 8;

/// A Pod of a pool, as it was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct PoolPod {
    pub(super) name: String,
    pub(super) uid: String,
    /// Changes with every change of the Pod.
    pub(super) version: String,
    pub(super) state: State,
}

/// The state of a Pod of a pool.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum State {
    /// It starts, or its guest was not checked yet.
    Starting,
    /// Its guest has answered. It can be taken while it is `ready`.
    Warm { ready: bool },
    /// A sandbox has taken it.
    Active,
    /// It has ended, and no sandbox had it.
    Dead,
    /// It is being deleted.
    Terminating,
}

/// What a refiller does next.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Plan {
    /// The number of Pods to create.
    pub(super) make: usize,
    /// Starting Pods that no refiller works at any more.
    pub(super) adopt: Vec<PoolPod>,
    /// Pods that are dead, or too many.
    pub(super) discard: Vec<PoolPod>,
}

/// Returns what brings the pool to `target` waiting Pods. `at_work` are the names of Pods that are being started.
pub(super) fn plan(pods: &[PoolPod], target: usize, at_work: &BTreeSet<String>) -> Plan {
    let idle = || pods.iter().filter(|pod| !at_work.contains(&pod.name));
    let mut waiting: Vec<_> = idle().filter(|pod| pod.state.is_waiting()).collect();
    // If there are too many, those that can be taken are kept.
    waiting.sort_by_key(|pod| (pod.state == State::Starting, &pod.name));
    let kept = waiting.len().min(target.saturating_sub(at_work.len()));
    let (kept, surplus) = waiting.split_at(kept);
    let room = MAX_STARTING.saturating_sub(at_work.len());
    let adopt: Vec<_> = kept.iter().filter(|pod| pod.state == State::Starting).take(room).collect();
    Plan {
        make: target.saturating_sub(kept.len() + at_work.len()).min(room - adopt.len()),
        adopt: adopt.into_iter().map(|&pod| pod.clone()).collect(),
        discard: idle()
            .filter(|pod| pod.state == State::Dead)
            .chain(surplus.iter().copied())
            .cloned()
            .collect(),
    }
}

/// Returns a random Pod that can be taken, so that concurrent callers seldom choose the same.
pub(super) fn candidate<'a>(pods: &'a [PoolPod], random: &mut fastrand::Rng) -> Option<&'a PoolPod> {
    let warm: Vec<_> = pods.iter().filter(|pod| pod.state == State::Warm { ready: true }).collect();
    random.choice(warm)
}

impl State {
    /// Whether it counts as waiting.
    pub(super) fn is_waiting(self) -> bool {
        matches!(self, Self::Starting | Self::Warm { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WARM: State = State::Warm { ready: true };

    fn pods(states: &[(&str, State)]) -> Vec<PoolPod> {
        let pod = |&(name, state): &(&str, State)| PoolPod {
            name: name.to_owned(),
            uid: String::new(),
            version: String::new(),
            state,
        };
        states.iter().map(pod).collect()
    }

    /// Returns how many Pods to create, and which to adopt and to delete.
    fn planned(states: &[(&str, State)], target: usize, at_work: &[&str]) -> (usize, String, String) {
        let names = |pods: Vec<PoolPod>| pods.into_iter().map(|pod| pod.name).collect::<Vec<_>>().join(" ");
        let plan = plan(&pods(states), target, &at_work.iter().map(|&name| name.to_owned()).collect());
        (plan.make, names(plan.adopt), names(plan.discard))
    }

    fn make(count: usize) -> (usize, String, String) {
        (count, String::new(), String::new())
    }

    #[test]
    fn missing_pods_are_created() {
        assert_eq!(planned(&[], 3, &[]), make(3));
        let states = [("a", WARM), ("b", State::Active), ("c", State::Terminating)];
        assert_eq!(planned(&states, 3, &[]), make(2));
        assert_eq!(planned(&states, 1, &[]), make(0));
        assert_eq!(planned(&[("a", State::Warm { ready: false })], 1, &[]), make(0), "it may be ready soon");
    }

    #[test]
    fn pods_that_are_being_started_are_not_created_again() {
        assert_eq!(planned(&[], 3, &["a", "b"]), make(1));
        assert_eq!(planned(&[("a", State::Starting)], 2, &["a", "b"]), make(0));
        assert_eq!(planned(&[("a", State::Dead)], 2, &["a"]), make(1), "it is being replaced");
    }

    #[test]
    fn pods_of_a_dead_refiller_are_adopted() {
        assert_eq!(planned(&[("a", State::Starting)], 2, &[]), (1, "a".to_owned(), String::new()));
    }

    #[test]
    fn dead_pods_are_deleted_and_then_surplus_ones_unfinished_first() {
        let discard = |names: &str| (0, String::new(), names.to_owned());
        assert_eq!(planned(&[("a", State::Dead), ("b", WARM)], 1, &[]), discard("a"));
        let states = [("a", State::Starting), ("b", WARM), ("c", State::Active), ("d", WARM)];
        assert_eq!(planned(&states, 1, &[]), discard("d a"));
        assert_eq!(planned(&states, 0, &[]), discard("b d a"));
    }

    #[test]
    fn the_number_of_concurrent_starts_is_limited() {
        assert_eq!(planned(&[], 100, &[]), make(MAX_STARTING));
        assert_eq!(planned(&[], 100, &["a", "b", "c"]), make(MAX_STARTING - 3));
    }

    #[test]
    fn a_random_ready_pod_is_taken() {
        let states = [
            ("a", State::Starting),
            ("b", State::Warm { ready: false }),
            ("c", State::Active),
            ("d", State::Dead),
        ];
        assert_eq!(candidate(&pods(&states), &mut fastrand::Rng::with_seed(1)), None);
        let warm = pods(&["a", "b", "c", "d", "e", "f"].map(|name| (name, WARM)));
        let mut random = fastrand::Rng::with_seed(1);
        let taken = (0..200).filter_map(|_| candidate(&warm, &mut random)).map(|pod| &pod.name);
        assert_eq!(taken.collect::<BTreeSet<_>>().len(), warm.len());
    }
}
