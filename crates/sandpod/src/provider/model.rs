//! A simulation of idle and expiry times, with a backend in memory and paused time. Users use sandboxes at random, and
//! cleanups delete idle ones.
//!
//! A failure names its seed, and `SANDPOD_SEED=<seed>` repeats that schedule alone.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use sandpod_client::Observer as _;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::activity::{Activity, Calls, period};
use super::sweep::{Guests, Sweep};
use crate::backend::{
    Backend, CreateSpec, Facts, OnLost, Page, Place, PlaceState, Provisioned, Query, Record, Setup,
};
use crate::{Error, ErrorKind, Result, SandboxId};

const SCHEDULES: u64 = 100;
const SANDBOXES: usize = 12;
const STORM: Duration = Duration::from_secs(2000);
/// The maximum delay of a request, in milliseconds.
const SLOWEST: u64 = 1000;
/// The `max_idle` of one of the sweepers, which replaces the idle time of each sandbox.
const MAX_IDLE: Duration = Duration::from_secs(150);

struct World {
    random: fastrand::Rng,
    begin: Instant,
    version: u64,
    sandboxes: BTreeMap<SandboxId, Sandbox>,
    /// Whether the last write of an activity was lost. The next write succeeds.
    lost_one: bool,
    is_calm: bool,
    violations: Vec<String>,
}

struct Sandbox {
    record: Record,
    running: usize,
    used: SystemTime,
    deletions: usize,
}

impl World {
    fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000) + self.begin.elapsed()
    }

    fn seconds(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.random.u64(range.start * 1000..range.end * 1000))
    }

    /// Returns whether the guest has ended and accepts no calls.
    fn has_ended(&self, id: &SandboxId) -> bool {
        let (now, sandbox) = (self.now(), &self.sandboxes[id]);
        let record = &sandbox.record;
        if record.place_state == PlaceState::Ended {
            return true;
        }
        let over =
            |since: SystemTime, limit: Option<Duration>| limit.is_some_and(|limit| since + limit <= now);
        over(record.created_at.unwrap_or(now), record.ttl)
            || sandbox.running == 0 && over(sandbox.used, record.idle_ttl)
    }

    fn delete(&mut self, id: &SandboxId) {
        let now = self.now();
        let sandbox = self.sandboxes.get_mut(id).expect("the sandbox exists");
        sandbox.deletions += 1;
        let record = &sandbox.record;
        if record.ttl.is_some_and(|ttl| record.created_at.is_some_and(|created| created + ttl <= now)) {
            return;
        }
        let unused = now.duration_since(sandbox.used).unwrap_or_default();
        // A lost write is repeated a little later.
        let idle = record.idle_ttl.map_or(MAX_IDLE, |idle| idle.min(MAX_IDLE));
        let least = idle.saturating_sub(period(record.idle_ttl) / 5);
        if sandbox.running > 0 || unused + Duration::from_millis(2 * SLOWEST) < least {
            let running = sandbox.running;
            self.violations
                .push(format!("{id} was deleted {unused:?} after its last use, {running} calls run"));
        }
    }
}

#[derive(Clone)]
struct Model(Arc<Mutex<World>>);

impl Model {
    fn new(seed: u64) -> Self {
        let world = World {
            random: fastrand::Rng::with_seed(seed),
            begin: Instant::now(),
            version: 0,
            sandboxes: BTreeMap::new(),
            lost_one: false,
            is_calm: false,
            violations: Vec::new(),
        };
        Self(Arc::new(Mutex::new(world)))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn pause(&self) {
        let time = Duration::from_millis(self.world().random.u64(1..SLOWEST));
        sleep(time).await;
    }

    /// Creates a sandbox that is handed out now.
    fn create(&self, number: usize) -> SandboxId {
        let mut world = self.world();
        let (ttl, idle_ttl) = (world.seconds(200..1000), world.seconds(20..200));
        let (ttl, idle_ttl) =
            (Some(ttl).filter(|_| number.is_multiple_of(3)), Some(idle_ttl).filter(|_| number % 4 != 1));
        let (id, now): (SandboxId, _) = (format!("s{number}").parse().expect("the id is valid"), world.now());
        let record = Record {
            id: id.clone(),
            uid: id.to_string(),
            namespace: String::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            generation: 1,
            made_at: Some(now),
            created_at: Some(now),
            last_activity: None,
            ttl,
            idle_ttl,
            place_state: PlaceState::Alive,
            guest: None,
            facts: Facts::default(),
            version: "0".to_owned(),
        };
        world.sandboxes.insert(id.clone(), Sandbox { record, running: 0, used: now, deletions: 0 });
        id
    }
}

impl Backend for Model {
    fn record_activity<'a>(&'a self, id: &'a SandboxId, _uid: &'a str) -> BoxFuture<'a, Result<()>> {
        async move {
            self.pause().await;
            let mut world = self.world();
            world.lost_one = !world.lost_one && world.random.u32(0..4) == 0;
            if world.lost_one {
                return Err(Error::new(ErrorKind::Unavailable, "No answer.", "Try again."));
            }
            world.version += 1;
            let (now, version) = (world.now(), world.version.to_string());
            if let Some(sandbox) = world.sandboxes.get_mut(id).filter(|sandbox| sandbox.deletions == 0) {
                (sandbox.record.last_activity, sandbox.record.version) = (Some(now), version);
            }
            Ok(())
        }
        .boxed()
    }

    fn list<'a>(&'a self, _query: &'a Query) -> BoxFuture<'a, Result<Page>> {
        async move {
            self.pause().await;
            let there = |sandbox: &&Sandbox| sandbox.deletions == 0;
            let records =
                self.world().sandboxes.values().filter(there).map(|sandbox| sandbox.record.clone()).collect();
            Ok(Page { records, cursor: None })
        }
        .boxed()
    }

    fn delete_unchanged<'a>(&'a self, record: &'a Record) -> BoxFuture<'a, Result<bool>> {
        async move {
            self.pause().await;
            let mut world = self.world();
            let sandbox = &world.sandboxes[&record.id];
            let unchanged = sandbox.deletions == 0 && sandbox.record.version == record.version;
            if unchanged {
                world.delete(&record.id);
            }
            Ok(unchanged)
        }
        .boxed()
    }

    fn create<'a>(&'a self, _: &'a SandboxId, _: &'a CreateSpec) -> BoxFuture<'a, Result<Provisioned>> {
        unreachable!("the model creates its sandboxes itself")
    }

    fn attach<'a>(&'a self, _: &'a SandboxId, _: OnLost) -> BoxFuture<'a, Result<Option<Provisioned>>> {
        unreachable!("the model never attaches")
    }

    fn record_bound<'a>(&'a self, _: &'a Place) -> BoxFuture<'a, Result<()>> {
        unreachable!("the model never binds")
    }

    fn record_reported<'a>(&'a self, _: &'a Place) -> BoxFuture<'a, Result<()>> {
        unreachable!("the model never reports a loss")
    }

    fn begin_setup<'a>(&'a self, _: &'a Place, _: Duration) -> BoxFuture<'a, Result<Setup>> {
        unreachable!("the model never sets up a place")
    }

    fn find<'a>(&'a self, id: &'a SandboxId) -> BoxFuture<'a, Result<Option<Record>>> {
        async move {
            self.pause().await;
            let world = self.world();
            let sandbox = &world.sandboxes[id];
            Ok((sandbox.deletions == 0).then(|| sandbox.record.clone()))
        }
        .boxed()
    }

    fn delete<'a>(&'a self, _: &'a SandboxId, _: bool) -> BoxFuture<'a, Result<()>> {
        unreachable!("the model deletes only unchanged records")
    }

    fn set_ttl<'a>(&'a self, _: &'a Record, _: Duration) -> BoxFuture<'a, Result<bool>> {
        unreachable!("the model never extends a sandbox")
    }
}

/// Loses some requests and some responses.
impl Guests for Model {
    fn end_if_idle<'a>(&'a self, record: &'a Record, least: Duration) -> BoxFuture<'a, Result<bool>> {
        async move {
            self.pause().await;
            let lost = || Err(Error::new(ErrorKind::Unavailable, "No answer.", "Try again."));
            let is_lost = self.world().random.u32(0..4);
            if is_lost == 0 {
                return lost();
            }
            let ends = {
                let mut world = self.world();
                let now = world.now();
                let sandbox = world.sandboxes.get_mut(&record.id).expect("the sandbox exists");
                let unused = now.duration_since(sandbox.used).unwrap_or_default();
                let ends = sandbox.running == 0 && unused >= least;
                if ends {
                    sandbox.record.place_state = PlaceState::Ended;
                }
                ends
            };
            self.pause().await;
            if is_lost == 1 { lost() } else { Ok(ends) }
        }
        .boxed()
    }
}

/// Uses a sandbox at random intervals until its guest has ended.
async fn user(model: Model, id: SandboxId) {
    let idle_ttl = model.world().sandboxes[&id].record.idle_ttl;
    let activity = Activity::new(Arc::new(model.clone()), id.clone(), id.to_string(), idle_ttl);
    activity.start(true);
    let calls = Calls(activity);
    loop {
        let (pause, time) = {
            let mut world = model.world();
            (world.seconds(0..100), world.seconds(0..100))
        };
        sleep(pause).await;
        {
            let mut world = model.world();
            if world.is_calm || world.has_ended(&id) {
                return;
            }
            world.sandboxes.get_mut(&id).expect("the sandbox exists").running += 1;
        }
        calls.begun();
        sleep(time).await;
        calls.ended();
        let mut world = model.world();
        let now = world.now();
        let sandbox = world.sandboxes.get_mut(&id).expect("the sandbox exists");
        (sandbox.running, sandbox.used) = (sandbox.running - 1, now);
    }
}

/// Runs cleanups repeatedly and returns the sandboxes that they deleted.
async fn sweeper(model: Model, max_idle: Option<Duration>) -> Vec<SandboxId> {
    let mut deleted = Vec::new();
    let end = Instant::now() + STORM * 2;
    while Instant::now() < end {
        let pause = model.world().seconds(1..60);
        sleep(pause).await;
        let sweep = Sweep { backend: &model, guests: &model, audit: None, max_idle };
        let swept = sweep.run(|| model.world().now()).await;
        deleted.extend(swept.expect("the sweep succeeds").deleted);
    }
    deleted
}

/// Runs the schedule of this seed and returns its violations.
async fn schedule(seed: u64) -> Vec<String> {
    fastrand::seed(seed); // Makes the jitter of the records reproducible.
    let model = Model::new(seed);
    let mut users = JoinSet::new();
    for number in 0..SANDBOXES {
        let id = model.create(number);
        users.spawn(user(model.clone(), id));
    }
    let mut sweepers = JoinSet::new();
    for max_idle in [None, Some(MAX_IDLE)] {
        sweepers.spawn(sweeper(model.clone(), max_idle));
    }
    sleep(STORM).await;
    model.world().is_calm = true;
    users.join_all().await;
    let reported: Vec<_> = sweepers.join_all().await.concat();
    let mut world = model.world();
    let mut violations = std::mem::take(&mut world.violations);
    for (id, sandbox) in &world.sandboxes {
        let reports = reported.iter().filter(|reported| *reported == id).count();
        if (sandbox.deletions, reports) != (1, 1) {
            violations
                .push(format!("{id} was deleted {} times and reported {reports} times", sandbox.deletions));
        }
    }
    violations
}

#[tokio::test(start_paused = true)]
async fn cleanup_deletes_idle_sandboxes_and_no_used_ones() {
    let model = Model::new(0);
    let [idle, used, running] = [4, 5, 6].map(|number| model.create(number));
    let change = |id: &SandboxId, running| {
        let mut world = model.world();
        let now = world.now();
        let sandbox = world.sandboxes.get_mut(id).expect("the sandbox exists");
        (sandbox.running, sandbox.used) = (running, now);
    };
    change(&running, 1);
    sleep(Duration::from_secs(3)).await;
    let (mut deleted, began) = (Vec::new(), Instant::now());
    // A request or a response may be lost: the next cleanup retries.
    while deleted.is_empty() && began.elapsed() < Duration::from_secs(30) {
        change(&used, 0);
        let max_idle = Some(Duration::from_secs(2));
        let sweep = Sweep { backend: &model, guests: &model, audit: None, max_idle };
        deleted = sweep.run(|| model.world().now()).await.expect("the sweep succeeds").deleted;
    }
    assert_eq!(deleted, [idle]);
}

#[test]
fn used_sandboxes_stay_and_idle_ones_are_deleted_once() {
    let one = std::env::var("SANDPOD_SEED").ok().map(|seed| seed.parse().expect("SANDPOD_SEED is a number"));
    let first = one.unwrap_or_else(|| fastrand::u64(..u64::MAX / 2));
    for seed in first..first + one.map_or(SCHEDULES, |_| 1) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let violations = runtime.expect("a runtime can be built").block_on(schedule(seed));
        assert!(violations.is_empty(), "SANDPOD_SEED={seed}: {}", violations.join("; "));
    }
}
