//! A model test: the pool's logic on a store in memory, in paused time. Refillers crash, requests are late or lost,
//! Pods die and many sandboxes take Pods at once. A random number generator decides what happens when.
//!
//! A schedule that fails prints the seed of its generator, and `SANDPOD_SEED=<seed>` runs it again, alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::leadership;
use super::plan::{PoolPod, State, candidate};
use super::refill::Refiller;
use super::store::{PoolLease, Store};
use crate::{Error, ErrorKind, Result};

const SCHEDULES: u64 = 50;
const TARGET: usize = 5;
const PROCESSES: u64 = 3;
const TAKERS: u64 = 8;
const STORM: Duration = Duration::from_secs(300);

/// The state of the model.
struct World {
    random: fastrand::Rng,
    /// No more faults are injected.
    is_calm: bool,
    count: u64,
    lease: Option<PoolLease>,
    pods: BTreeMap<String, PoolPod>,
    taken: BTreeSet<String>,
    most: usize,
    violations: Vec<String>,
    news: watch::Sender<u64>,
}

/// What happens to a request.
enum Fault {
    None,
    /// It is lost.
    Lost,
    /// It is carried out, and its response is lost.
    Unanswered,
}

impl World {
    fn next(&mut self) -> String {
        self.count += 1;
        self.news.send_replace(self.count);
        self.count.to_string()
    }

    fn millis(&mut self, range: std::ops::Range<u64>) -> Duration {
        Duration::from_millis(self.random.u64(range))
    }

    fn fault(&mut self) -> Fault {
        match self.random.u32(0..40) {
            0 if !self.is_calm => Fault::Lost,
            1 if !self.is_calm => Fault::Unanswered,
            _ => Fault::None,
        }
    }

    /// Records a violation if more Pods wait than the target.
    fn check(&mut self) {
        let waiting = self.pods.values().filter(|pod| pod.state.is_waiting()).count();
        self.most = self.most.max(waiting);
        if waiting > TARGET {
            self.violations.push(format!("{waiting} Pods wait: {:?}", self.pods));
        }
    }

    fn change(&mut self, name: &str, state: State) {
        let version = self.next();
        if let Some(pod) = self.pods.get_mut(name) {
            (pod.version, pod.state) = (version, state);
        }
        self.check();
    }

    fn remove(&mut self, name: &str) {
        self.next();
        self.pods.remove(name);
    }

    /// Whether the Pod is still as it was read.
    fn unchanged(&self, read: &PoolPod) -> bool {
        self.pods.get(&read.name).is_some_and(|pod| pod.uid == read.uid && pod.version == read.version)
    }
}

#[derive(Clone)]
struct Model(Arc<Mutex<World>>);

impl Model {
    fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(World {
            random: fastrand::Rng::with_seed(seed),
            is_calm: false,
            count: 0,
            lease: None,
            pods: BTreeMap::new(),
            taken: BTreeSet::new(),
            most: 0,
            violations: Vec::new(),
            news: watch::Sender::new(0),
        })))
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the longest time of a call in milliseconds: sometimes so long that the Lease is lost.
    fn slowest(&self) -> u64 {
        if self.world().random.u32(0..20) == 0 { 25_000 } else { 200 }
    }

    /// Does a request after some time, also if the caller is cancelled.
    async fn call<T: Send + 'static>(
        &self,
        slowest: u64,
        work: impl FnOnce(&mut World) -> T + Send + 'static,
    ) -> Result<T> {
        let (there, back, fault) = {
            let mut world = self.world();
            (world.millis(1..slowest), world.millis(1..50), world.fault())
        };
        let lost = || Error::new(ErrorKind::Unavailable, "No answer.", "Try again.");
        if matches!(fault, Fault::Lost) {
            sleep(there).await;
            return Err(lost());
        }
        let model = self.clone();
        let arriving = tokio::spawn(async move {
            sleep(there).await;
            work(&mut model.world())
        });
        let answer = arriving.await.map_err(|_| lost())?;
        sleep(back).await;
        if matches!(fault, Fault::Unanswered) { Err(lost()) } else { Ok(answer) }
    }

    fn changes(&self) -> BoxStream<'static, ()> {
        let news = self.world().news.subscribe();
        stream::unfold(news, |mut news| async { news.changed().await.ok().map(|()| ((), news)) }).boxed()
    }
}

impl Store for Model {
    /// Its name and its owner.
    type Prepared = (String, String);

    async fn lease(&self) -> Result<Option<PoolLease>> {
        self.call(100, |world| world.lease.clone()).await
    }

    async fn write_lease(&self, read: Option<&PoolLease>, holder: Option<&str>) -> Result<Option<PoolLease>> {
        let (read, holder) = (read.cloned(), holder.map(str::to_owned));
        let slowest = self.slowest();
        self.call(slowest, |world| {
            if world.lease != read {
                return None;
            }
            let version = world.next();
            let uid = read.map_or_else(|| version.clone(), |lease| lease.uid);
            world.lease = Some(PoolLease { uid, version, holder });
            world.lease.clone()
        })
        .await
    }

    async fn pods(&self) -> Result<Vec<PoolPod>> {
        self.call(100, |world| {
            world.pods.values().filter(|pod| pod.state != State::Active).cloned().collect()
        })
        .await
    }

    fn new_name(&self) -> String {
        format!("p-{}", self.world().random.u32(..))
    }

    async fn prepare(&self, name: &str, lease: &PoolLease) -> Result<(String, String)> {
        let prepared = (name.to_owned(), lease.uid.clone());
        let slowest = self.slowest();
        self.call(slowest, |_| prepared).await
    }

    async fn make(&self, (name, owner): (String, String)) -> Result<()> {
        self.call(2000, move |world| {
            // A Pod whose owner is gone is collected at once.
            let stays = world.lease.as_ref().is_some_and(|lease| lease.uid == owner);
            if stays && !world.pods.contains_key(&name) {
                let uid = world.next();
                let pod = PoolPod { name: name.clone(), version: uid.clone(), uid, state: State::Starting };
                world.pods.insert(name, pod);
                world.check();
            }
        })
        .await
    }

    async fn start(&self, name: &str) -> Result<()> {
        let starting = |world: &World, name: &str| {
            world.pods.get(name).filter(|pod| pod.state == State::Starting).map(|pod| pod.uid.clone())
        };
        let name = name.to_owned();
        let (uid, time) = {
            let mut world = self.world();
            (starting(&world, &name), world.millis(500..5000))
        };
        sleep(time).await;
        self.call(100, move |world| {
            let same = uid.is_some() && starting(world, &name) == uid;
            if same && !world.is_calm && world.random.u32(0..10) == 0 {
                world.remove(&name);
                return Err(Error::new(ErrorKind::StartFailed, "It can't start.", "Look at it."));
            }
            if same {
                world.change(&name, State::Warm { ready: true });
            }
            Ok(())
        })
        .await?
    }

    async fn discard(&self, pod: &PoolPod) -> Result<()> {
        let pod = pod.clone();
        self.call(100, move |world| {
            if world.unchanged(&pod) {
                world.remove(&pod.name);
            }
        })
        .await
    }

    fn lease_changes(&self) -> BoxStream<'static, ()> {
        self.changes()
    }

    fn pod_changes(&self) -> BoxStream<'static, ()> {
        self.changes()
    }
}

/// A process that shares the pool. It is started, and crashes or is closed, again and again.
async fn process(model: Model, number: u64) {
    let mut life = 0;
    loop {
        life += 1;
        let identity = format!("{number}.{life}");
        let refiller = Refiller::new(Arc::new(model.clone()), identity, TARGET);
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(async move {
            refiller.run(async { drop(stopped.await) }).await;
        });
        let (time, crashes, pause) = {
            let mut world = model.world();
            (world.millis(2000..60_000), world.random.bool(), world.millis(0..20_000))
        };
        if model.world().is_calm {
            return drop(running.await); // For ever.
        }
        sleep(time).await;
        if crashes {
            running.abort();
        } else {
            drop(stop);
            let _ = running.await;
        }
        sleep(pause).await;
    }
}

/// Takes a random Pod as `take` does, uses it for a while and deletes it.
async fn taker(model: Model) {
    while !model.world().is_calm {
        let pause = model.world().millis(100..8000);
        sleep(pause).await;
        let Ok(pods) = model.pods().await else { continue };
        let chosen = candidate(&pods, &mut model.world().random).cloned();
        let Some(chosen) = chosen else { continue };
        let taking = chosen.clone();
        let taken = model.call(300, move |world| {
            let unchanged = world.unchanged(&taking);
            if unchanged {
                world.change(&taking.name, State::Active);
                if !world.taken.insert(taking.uid.clone()) {
                    world.violations.push(format!("{taking:?} was taken twice"));
                }
            }
            unchanged
        });
        // Without a response the sandbox is deleted, and the Pod with it if it was taken.
        let has_it = taken.await.unwrap_or(true);
        if has_it {
            let time = model.world().millis(5000..20_000);
            sleep(time).await;
            let mut world = model.world();
            let same = world.pods.get(&chosen.name).is_some_and(|pod| pod.uid == chosen.uid);
            if same && world.pods[&chosen.name].state == State::Active {
                world.remove(&chosen.name);
            }
        }
    }
}

/// Makes Pods fail or become unready, and sometimes deletes the Lease with all waiting Pods.
async fn nature(model: Model) {
    while !model.world().is_calm {
        let pause = model.world().millis(500..5000);
        sleep(pause).await;
        let mut world = model.world();
        let names: Vec<_> = world.pods.keys().cloned().collect();
        let Some(name) = world.random.choice(names) else { continue };
        match (world.random.u32(0..20), world.pods[&name].state) {
            (0..8, State::Warm { ready }) => world.change(&name, State::Warm { ready: !ready }),
            (8..12, state) if state.is_waiting() => world.change(&name, State::Dead),
            (12..14, State::Warm { .. } | State::Dead) => world.remove(&name),
            (19, _) if world.random.u32(0..10) == 0 => {
                world.lease = None;
                world.next();
                world.pods.retain(|_, pod| !pod.state.is_waiting());
            }
            _ => {}
        }
    }
}

/// Runs the schedule of this seed and returns the violations.
async fn schedule(seed: u64) -> Vec<String> {
    let model = Model::new(seed);
    let mut actors = JoinSet::new();
    for number in 0..PROCESSES {
        actors.spawn(process(model.clone(), number));
    }
    for _ in 0..TAKERS {
        actors.spawn(taker(model.clone()));
    }
    actors.spawn(nature(model.clone()));
    sleep(STORM).await;
    model.world().is_calm = true;
    sleep(Duration::from_secs(60)).await;
    for pod in model.world().pods.values_mut() {
        // A Pod that was not ready becomes ready by itself.
        if matches!(pod.state, State::Warm { .. }) {
            pod.state = State::Warm { ready: true };
        }
    }
    sleep(Duration::from_secs(240)).await;
    let mut world = model.world();
    let ready = world.pods.values().filter(|pod| pod.state == State::Warm { ready: true }).count();
    if ready != TARGET || world.pods.len() != TARGET {
        let left = format!("the pool is not full in the end: {:?}", world.pods);
        world.violations.push(left);
    }
    if world.most != TARGET || world.taken.len() < 20 {
        let few = format!("nothing happened: {} at most, {} taken", world.most, world.taken.len());
        world.violations.push(few);
    }
    std::mem::take(&mut world.violations)
}

/// Runs a schedule in a runtime with paused time.
fn run(seed: u64) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime can be built").block_on(schedule(seed))
}

#[test]
fn a_pool_never_overshoots_no_pod_is_shared_and_it_is_full_in_the_end() {
    let one = std::env::var("SANDPOD_SEED").ok().map(|seed| seed.parse().expect("a seed is a number"));
    let first = one.unwrap_or_else(|| fastrand::u64(..u64::MAX / 2));
    for seed in first..first + one.map_or(SCHEDULES, |_| 1) {
        let violations = run(seed);
        assert!(violations.is_empty(), "SANDPOD_SEED={seed}: {}", violations.join("; "));
    }
}

#[test]
fn the_schedule_of_a_seed_is_always_the_same() {
    let trace = |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(async {
            let model = Model::new(seed);
            let mut actors = JoinSet::new();
            actors.spawn(process(model.clone(), 0));
            actors.spawn(taker(model.clone()));
            actors.spawn(nature(model.clone()));
            sleep(STORM).await;
            let world = model.world();
            (world.count, world.taken.clone(), world.pods.clone())
        })
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
}

#[tokio::test(start_paused = true)]
async fn a_dead_leader_is_replaced_when_its_lease_expires_a_closed_one_at_once() {
    let model = Model::new(1);
    model.world().is_calm = true;
    let begin = |identity: &str| {
        let refiller = Refiller::new(Arc::new(model.clone()), identity.to_owned(), TARGET);
        let (stop, stopped) = oneshot::channel::<()>();
        (tokio::spawn(async move { refiller.run(async { drop(stopped.await) }).await }), stop)
    };
    let holder = || model.world().lease.as_ref().and_then(|lease| lease.holder.clone());
    let (first, _kept) = begin("first");
    sleep(Duration::from_secs(60)).await;
    let (_second, closing) = begin("second");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(holder().as_deref(), Some("first"), "it renews the Lease");

    first.abort();
    let death = Instant::now();
    while holder().as_deref() != Some("second") {
        sleep(Duration::from_millis(100)).await;
    }
    assert!(
        (leadership::DURATION / 2..leadership::DURATION + Duration::from_secs(2)).contains(&death.elapsed())
    );

    let (_third, _kept) = begin("third");
    sleep(Duration::from_secs(1)).await;
    drop(closing);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(holder().as_deref(), Some("third"));
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_closed_during_a_renewal_releases_the_lease() {
    for (seed, millis) in (0..20).flat_map(|seed| (4900..5400).step_by(50).map(move |millis| (seed, millis)))
    {
        let model = Model::new(seed);
        model.world().is_calm = true;
        let holder = || model.world().lease.as_ref().and_then(|lease| lease.holder.clone());
        let refiller = Refiller::new(Arc::new(model.clone()), "only".to_owned(), TARGET);
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(async move { refiller.run(async { drop(stopped.await) }).await });
        let begun = Instant::now();
        while holder().is_none() {
            sleep(Duration::from_millis(10)).await;
        }
        if begun.elapsed() > Duration::from_secs(1) {
            continue; // So slow that it is lost before it is known.
        }
        sleep(Duration::from_millis(millis)).await;
        drop(stop);
        running.await.unwrap();
        assert_eq!(holder(), None, "seed {seed}, closed after {millis} ms");
    }
}
