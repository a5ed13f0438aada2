//! Prometheus metrics, under the names of the original router. No label names a sandbox.

use std::sync::atomic::AtomicI64;
use std::time::Duration;

use http::{Method, StatusCode};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// The status of a request whose caller hung up before the answer, as nginx logs it.
pub(crate) const HUNG_UP: u16 = 499;

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Request {
    method: &'static str,
    code: String,
    sandbox_namespace: String,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct UpstreamError {
    sandbox_namespace: String,
    reason: String,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Decision {
    sandbox_namespace: String,
    decision: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
struct Build {
    git_version: &'static str,
    platform: &'static str,
}

/// The counters and histograms of a router.
pub struct Metrics {
    registry: Registry,
    requests: Family<Request, Counter>,
    durations: Family<Request, Histogram>,
    in_flight: Gauge<i64, AtomicI64>,
    upstream_errors: Family<UpstreamError, Counter>,
    upstream_retries: Counter,
    decisions: Family<Decision, Counter>,
    reloads: Family<Outcome, Counter>,
    connects: Histogram,
    reviews: Histogram,
    wakes: Family<Outcome, Histogram>,
    pub(crate) tunnels: Gauge<i64, AtomicI64>,
}

/// A histogram of seconds, from one millisecond to five minutes.
fn seconds() -> Histogram {
    Histogram::new([
        0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0,
        300.0,
    ])
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("sandbox_router"),
            requests: Family::default(),
            durations: Family::new_with_constructor(seconds),
            in_flight: Gauge::default(),
            upstream_errors: Family::default(),
            upstream_retries: Counter::default(),
            decisions: Family::default(),
            reloads: Family::default(),
            connects: seconds(),
            reviews: seconds(),
            wakes: Family::new_with_constructor(seconds),
            tunnels: Gauge::default(),
        };
        let registry = &mut metrics.registry;
        // The encoder appends `_total` to counters.
        registry.register("requests", "HTTP requests", metrics.requests.clone());
        registry.register("request_duration_seconds", "Duration of HTTP requests", metrics.durations.clone());
        registry.register("inflight_requests", "HTTP requests in flight", metrics.in_flight.clone());
        registry.register("upstream_errors", "Failed requests to sandboxes", metrics.upstream_errors.clone());
        registry.register(
            "upstream_retries",
            "Repeated connection attempts",
            metrics.upstream_retries.clone(),
        );
        registry.register("authz_decisions", "Admitted and refused requests", metrics.decisions.clone());
        registry.register("cert_reloads", "Reloads of the certificate", metrics.reloads.clone());
        let invalidations: Counter = Counter::default();
        registry.register(
            "cache_invalidations",
            "Always 0: only the watch changes the addresses of sandboxes",
            invalidations,
        );
        let build: Family<Build, Gauge> = Family::default();
        let labels = Build { git_version: env!("CARGO_PKG_VERSION"), platform: std::env::consts::ARCH };
        build.get_or_create(&labels).set(1);
        registry.register("build_info", "Version of the router", build);
        registry.register(
            "connect_duration_seconds",
            "Duration of connection attempts",
            metrics.connects.clone(),
        );
        registry.register(
            "review_duration_seconds",
            "Duration of reviews by the API server",
            metrics.reviews.clone(),
        );
        registry.register(
            "wake_duration_seconds",
            "Time that requests waited for a sandbox",
            metrics.wakes.clone(),
        );
        registry.register(
            "open_tunnels",
            "Open connections that switched protocols",
            metrics.tunnels.clone(),
        );
        metrics
    }
}

/// Counts a request as in flight until it is dropped, also if its caller goes away.
pub(crate) struct InFlight(Gauge<i64, AtomicI64>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl Metrics {
    pub(crate) fn enter(&self) -> InFlight {
        self.in_flight.inc();
        InFlight(self.in_flight.clone())
    }

    pub(crate) fn note_request(&self, method: &Method, status: u16, namespace: &str, took: Duration) {
        let sandbox_namespace = if namespace.is_empty() { "-" } else { namespace }.to_owned();
        let labels = Request { method: known(method), code: code(status), sandbox_namespace };
        self.durations.get_or_create(&labels).observe(took.as_secs_f64());
        self.requests.get_or_create(&labels).inc();
    }

    pub(crate) fn note_upstream_error(&self, namespace: &str, reason: &str) {
        let labels = UpstreamError { sandbox_namespace: namespace.to_owned(), reason: reason.to_owned() };
        self.upstream_errors.get_or_create(&labels).inc();
    }

    pub(crate) fn note_retry(&self) {
        self.upstream_retries.inc();
    }

    pub(crate) fn note_decision(&self, namespace: &str, is_admitted: bool) {
        let namespace = if namespace.is_empty() { "-" } else { namespace };
        let decision = if is_admitted { "allow" } else { "deny" };
        self.decisions.get_or_create(&Decision { sandbox_namespace: namespace.to_owned(), decision }).inc();
    }

    pub(crate) fn note_reload(&self, is_loaded: bool) {
        let outcome = if is_loaded { "success" } else { "failure" };
        self.reloads.get_or_create(&Outcome { outcome }).inc();
    }

    pub(crate) fn note_connect(&self, took: Duration) {
        self.connects.observe(took.as_secs_f64());
    }

    pub(crate) fn note_review(&self, took: Duration) {
        self.reviews.observe(took.as_secs_f64());
    }

    pub(crate) fn note_wake(&self, took: Duration, is_awake: bool) {
        let outcome = if is_awake { "success" } else { "failure" };
        self.wakes.get_or_create(&Outcome { outcome }).observe(took.as_secs_f64());
    }

    /// All metrics in the text format of Prometheus.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // A String takes all that is written to it.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

/// A status as a label: sandboxes cannot make new series. Other statuses than the registered ones become their class.
fn code(status: u16) -> String {
    let is_registered = StatusCode::from_u16(status).is_ok_and(|status| status.canonical_reason().is_some());
    match status {
        _ if is_registered || status == HUNG_UP => status.to_string(),
        100..=599 => format!("{}xx", status / 100),
        _ => "other".to_owned(),
    }
}

/// A method as a label: callers cannot make new series.
fn known(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        Method::PATCH => "PATCH",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandbox_cannot_make_series_by_its_status() {
        for (status, label) in [
            (200, "200"),
            (404, "404"),
            (499, "499"),
            (101, "101"),
            (299, "2xx"),
            (599, "5xx"),
            (799, "other"),
            (999, "other"),
        ] {
            assert_eq!(code(status), label);
        }
    }
}
