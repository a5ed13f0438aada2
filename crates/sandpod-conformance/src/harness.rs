//! Runs behaviours as tests with names of their own.

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;
use tokio::sync::{OnceCell, RwLock};
use tokio::time::timeout;

use crate::behaviours::{self, Behaviour, Case};
use crate::table::{self, Score};
use crate::{Kernel, OpenedSandbox, Target};

/// Time limit of one behaviour, including the opening of its target.
const TIME_LIMIT: Duration = Duration::from_secs(180);

/// A target that is opened when its first test begins.
struct OpenedTarget {
    target: Target,
    /// The opened sandbox, or the error: opening is not retried for every test.
    place: OnceCell<Result<OpenedSandbox, String>>,
    score: Mutex<Score>,
    /// Held alone by a behaviour that breaks streams: another call that has no answer then may have an unknown outcome.
    streams: RwLock<()>,
}

/// Runs all behaviours on all targets, as this program's arguments select, and then deletes the sandboxes.
///
/// # Panics
///
/// If the runtime cannot start, or a target's missing capability names an unknown behaviour.
#[must_use]
pub fn run(targets: Vec<Target>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or_else(threads);
    let runtime = Arc::new(Runtime::new().unwrap());
    targets.iter().for_each(check);
    let targets: Vec<_> = targets
        .into_iter()
        .map(|target| {
            let (place, score, streams) = (OnceCell::new(), Mutex::default(), RwLock::default());
            Arc::new(OpenedTarget { target, place, score, streams })
        })
        .collect();
    let trials = targets.iter().flat_map(|target| {
        behaviours::of(&target.target).map(|behaviour| trial(&runtime, target, behaviour))
    });
    let conclusion = libtest_mimic::run(&arguments, trials.collect());

    let (mut rows, mut ends) = (Vec::new(), Vec::new());
    for target in targets {
        rows.push(table::row(&target.target, *target.score.lock().unwrap()));
        if let Some(Ok(place)) = Arc::into_inner(target).and_then(|target| target.place.into_inner()) {
            ends.push((place.end)());
        }
    }
    runtime.block_on(async { timeout(TIME_LIMIT, join_all(ends)).await.unwrap() });
    let is_kept = table::keep(&rows.into_iter().flatten().collect::<Vec<_>>());
    if conclusion.has_failed() || !is_kept { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Checks that the behaviours of missing capabilities exist.
fn check(target: &Target) {
    for name in target.missing.iter().flat_map(|lack| lack.behaviours) {
        assert!(behaviours::all().any(|behaviour| behaviour.name == *name), "no behaviour is called {name}");
    }
}

/// Returns the number of test threads, from the variable of Rust's own test harness.
fn threads() -> Option<usize> {
    std::env::var("RUST_TEST_THREADS").ok()?.parse().ok()
}

fn trial(runtime: &Arc<Runtime>, opening: &Arc<OpenedTarget>, behaviour: &'static Behaviour) -> Trial {
    let name = format!("{}::{}", slug(&opening.target), behaviour.name);
    let (runtime, opening) = (runtime.clone(), opening.clone());
    Trial::test(name, move || {
        opening.score.lock().unwrap().begun += 1;
        let outcome = runtime.block_on(runtime.spawn(attempt(opening.clone(), behaviour)));
        outcome.map_err(Failed::from)?;
        opening.score.lock().unwrap().passed += 1;
        Ok(())
    })
}

async fn attempt(opening: Arc<OpenedTarget>, behaviour: &'static Behaviour) {
    let target = &opening.target;
    let tried = timeout(TIME_LIMIT, async {
        let open = || async { tokio::spawn((target.open)()).await.map_err(|error| error.to_string()) };
        let place = opening.place.get_or_init(open).await.as_ref().unwrap();
        let (_alone, _beside_others) = if behaviour.needs.losses {
            (Some(opening.streams.write().await), None)
        } else {
            (None, Some(opening.streams.read().await))
        };
        let case = Case::new(place, target.kernel, behaviour.name).await;
        match target.missing_for(behaviour.name) {
            Some(lack) => behaviours::without_capability(case, lack.capability).await,
            None if behaviour.needs.shell && !target.has_shell => behaviours::without_shell(case).await,
            None => (behaviour.run)(case).await,
        }
    });
    assert!(tried.await.is_ok(), "timed out");
}

/// Returns the name of a target in test names.
fn slug(target: &Target) -> String {
    let old = if target.kernel == Kernel::Old { "_without_openat2_and_landlock" } else { "" };
    let words = format!("{}_{}_as_{}{old}", target.transport, target.place, target.user);
    words.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}
