//! Behaviours as tests with names of their own.

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use crate::behaviours::{self, At, Behaviour};
use crate::table::{self, Score};
use crate::{Kernel, Place, Way};

/// How long a behaviour may take, the opening of its place included.
const PATIENCE: Duration = Duration::from_secs(180);

/// A way that is opened when its first test begins.
struct Opening {
    way: Way,
    /// What was opened, or why not: it is not tried again for every test.
    place: OnceCell<Result<Place, String>>,
    score: Mutex<Score>,
}

/// Runs all behaviours on all ways, as the arguments of this program say, and ends what it opened.
///
/// # Panics
///
/// When there is no runtime to run them on, or a way lacks what is no behaviour.
#[must_use]
pub fn run(ways: Vec<Way>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = arguments.test_threads.or_else(threads);
    let runtime = Arc::new(Runtime::new().unwrap());
    ways.iter().for_each(check);
    let ways: Vec<_> = ways
        .into_iter()
        .map(|way| Arc::new(Opening { way, place: OnceCell::new(), score: Mutex::default() }))
        .collect();
    let trials =
        ways.iter().flat_map(|way| behaviours::of(&way.way).map(|behaviour| trial(&runtime, way, behaviour)));
    let conclusion = libtest_mimic::run(&arguments, trials.collect());

    let mut rows = Vec::new();
    for way in ways {
        rows.push(table::row(&way.way, *way.score.lock().unwrap()));
        if let Some(Ok(place)) = Arc::into_inner(way).and_then(|way| way.place.into_inner()) {
            runtime.block_on(async { timeout(PATIENCE, (place.end)()).await.unwrap() });
        }
    }
    let is_kept = table::keep(&rows.into_iter().flatten().collect::<Vec<_>>());
    if conclusion.has_failed() || !is_kept { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Sees that what is lacking is something that others do.
fn check(way: &Way) {
    for name in way.lacks.iter().flat_map(|lack| lack.behaviours) {
        assert!(behaviours::all().any(|behaviour| behaviour.name == *name), "no behaviour is called {name}");
    }
}

/// As many as the built-in tests would have.
fn threads() -> Option<usize> {
    std::env::var("RUST_TEST_THREADS").ok()?.parse().ok()
}

fn trial(runtime: &Arc<Runtime>, opening: &Arc<Opening>, behaviour: &'static Behaviour) -> Trial {
    let name = format!("{}::{}", slug(&opening.way), behaviour.name);
    let (runtime, opening) = (runtime.clone(), opening.clone());
    Trial::test(name, move || {
        opening.score.lock().unwrap().begun += 1;
        let outcome = runtime.block_on(runtime.spawn(attempt(opening.clone(), behaviour)));
        outcome.map_err(Failed::from)?;
        opening.score.lock().unwrap().passed += 1;
        Ok(())
    })
}

async fn attempt(opening: Arc<Opening>, behaviour: &'static Behaviour) {
    let way = &opening.way;
    let tried = timeout(PATIENCE, async {
        let open = || async { tokio::spawn((way.open)()).await.map_err(|error| error.to_string()) };
        let place = opening.place.get_or_init(open).await.as_ref().unwrap();
        let at = At::new(place, way.kernel, behaviour.name).await;
        match way.lacking(behaviour.name) {
            Some(lack) => behaviours::without_power(at, lack.power).await,
            None if behaviour.needs.shell && !way.has_shell => behaviours::without_shell(at).await,
            None => (behaviour.run)(at).await,
        }
    });
    assert!(tried.await.is_ok(), "it hangs");
}

/// What a way is called in the names of its tests.
fn slug(way: &Way) -> String {
    let old = if way.kernel == Kernel::Old { "_without_openat2_and_landlock" } else { "" };
    let words = format!("{}_{}_as_{}{old}", way.transport, way.place, way.user);
    words.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}
