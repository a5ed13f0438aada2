//! What a pool needs, and which of its Pods to take: decisions alone, made of what was read.

use std::collections::BTreeSet;

/// So many Pods of a pool are started at once: the nodes are everybody's.
pub(super) const MAX_STARTING: usize = 8;

/// A Pod of a pool, as it was read.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct PoolPod {
    /// Which of the pool's Pods: its name ends with it.
    pub(super) number: u32,
    pub(super) name: String,
    pub(super) uid: String,
    /// Changes whenever the Pod does.
    pub(super) version: String,
    pub(super) state: State,
}

/// How far a Pod of a pool is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum State {
    /// It is started, or nobody has spoken to its guest yet.
    Starting,
    /// Its guest has answered. It can be taken if it is `ready` at this moment.
    Warm { ready: bool },
    /// Somebody has it.
    Active,
    /// It has ended, and nobody had it.
    Dead,
    /// It is being deleted.
    Going,
}

/// What a refiller does next.
#[derive(Debug, Default, Eq, PartialEq)]
pub(super) struct Plan {
    /// Pods with these numbers are to be made.
    pub(super) make: Vec<u32>,
    /// These are started by nobody any more.
    pub(super) adopt: Vec<PoolPod>,
    /// These are dead, or too many.
    pub(super) discard: Vec<PoolPod>,
}

/// What brings the pool to `target` Pods that wait. `at_work` are the numbers of those that are in hand already.
pub(super) fn plan(pods: &[PoolPod], target: usize, at_work: &BTreeSet<u32>) -> Plan {
    let taken: BTreeSet<_> = pods.iter().map(|pod| pod.number).chain(at_work.iter().copied()).collect();
    let idle = || pods.iter().filter(|pod| !at_work.contains(&pod.number));
    let mut waiting: Vec<_> = idle().filter(|pod| pod.state.is_waiting()).collect();
    // Those that can be taken are kept, should there be too many.
    waiting.sort_by_key(|pod| (pod.state == State::Starting, pod.number));
    let kept = waiting.len().min(target.saturating_sub(at_work.len()));
    let (kept, surplus) = waiting.split_at(kept);
    let room = MAX_STARTING.saturating_sub(at_work.len());
    let adopt: Vec<_> = kept.iter().filter(|pod| pod.state == State::Starting).take(room).collect();
    let missing = target.saturating_sub(kept.len() + at_work.len()).min(room - adopt.len());
    Plan {
        make: (0..).filter(|number| !taken.contains(number)).take(missing).collect(),
        adopt: adopt.into_iter().map(|&pod| pod.clone()).collect(),
        discard: idle().filter(|pod| pod.state == State::Dead).chain(surplus.iter().copied()).cloned().collect(),
    }
}

/// One of those that can be taken, by chance: so that many who take don't all reach for the same.
pub(super) fn candidate<'a>(pods: &'a [PoolPod], random: &mut fastrand::Rng) -> Option<&'a PoolPod> {
    let warm: Vec<_> = pods.iter().filter(|pod| pod.state == State::Warm { ready: true }).collect();
    random.choice(warm)
}

impl State {
    /// Whether it counts as one that waits for somebody.
    pub(super) fn is_waiting(self) -> bool {
        matches!(self, Self::Starting | Self::Warm { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WARM: State = State::Warm { ready: true };

    fn pods(states: &[(u32, State)]) -> Vec<PoolPod> {
        let pod = |&(number, state): &(u32, State)| PoolPod {
            number,
            name: format!("p-{number}"),
            uid: String::new(),
            version: String::new(),
            state,
        };
        states.iter().map(pod).collect()
    }

    fn planned(states: &[(u32, State)], target: usize, at_work: &[u32]) -> (Vec<u32>, Vec<u32>, Vec<u32>) {
        let numbers = |pods: Vec<PoolPod>| pods.iter().map(|pod| pod.number).collect::<Vec<_>>();
        let plan = plan(&pods(states), target, &at_work.iter().copied().collect());
        (plan.make, numbers(plan.adopt), numbers(plan.discard))
    }

    #[test]
    fn what_is_missing_is_made_under_numbers_that_nobody_has() {
        assert_eq!(planned(&[], 3, &[]), (vec![0, 1, 2], vec![], vec![]));
        let states = [(0, WARM), (1, State::Active), (3, State::Going)];
        assert_eq!(planned(&states, 3, &[]), (vec![2, 4], vec![], vec![]));
        assert_eq!(planned(&states, 1, &[]), (vec![], vec![], vec![]));
    }

    #[test]
    fn what_is_in_hand_is_made_once() {
        assert_eq!(planned(&[], 3, &[0, 1]), (vec![2], vec![], vec![]));
        assert_eq!(planned(&[(0, State::Starting)], 2, &[0, 1]), (vec![], vec![], vec![]));
        assert_eq!(planned(&[(0, State::Dead)], 2, &[0]), (vec![1], vec![], vec![]), "it sees to it itself");
    }

    #[test]
    fn what_a_dead_refiller_left_is_finished() {
        assert_eq!(planned(&[(0, State::Starting)], 2, &[]), (vec![1], vec![0], vec![]));
    }

    #[test]
    fn the_dead_go_and_so_do_those_that_are_too_many_the_unfinished_first() {
        assert_eq!(planned(&[(0, State::Dead), (1, WARM)], 1, &[]), (vec![], vec![], vec![0]));
        let states = [(0, State::Starting), (1, WARM), (2, State::Active), (3, WARM)];
        assert_eq!(planned(&states, 1, &[]), (vec![], vec![], vec![3, 0]));
        assert_eq!(planned(&states, 0, &[]), (vec![], vec![], vec![1, 3, 0]));
    }

    #[test]
    fn only_so_many_are_started_at_once() {
        assert_eq!(planned(&[], 100, &[]).0.len(), MAX_STARTING);
        assert_eq!(planned(&[], 100, &[0, 1, 2]).0.len(), MAX_STARTING - 3);
    }

    #[test]
    fn who_takes_reaches_for_a_ready_one_by_chance() {
        let states = [(0, State::Starting), (1, State::Warm { ready: false }), (2, State::Active), (3, State::Dead)];
        assert_eq!(candidate(&pods(&states), &mut fastrand::Rng::with_seed(1)), None);
        let warm = pods(&(0..10).map(|number| (number, WARM)).collect::<Vec<_>>());
        let mut random = fastrand::Rng::with_seed(1);
        let taken: BTreeSet<_> = (0..200).filter_map(|_| candidate(&warm, &mut random)).map(|pod| pod.number).collect();
        assert_eq!(taken.len(), 10);
    }
}
