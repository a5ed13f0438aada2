//! Events, spans and metrics for an OpenTelemetry collector: OTLP over HTTP, in its JSON form.
//!
//! Every collector accepts the JSON form, and it needs no library. A collector is nearby (an agent on the node, a
//! sidecar, a Service), so there is no TLS; it forwards the data with credentials of its own.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::str::FromStr as _;
use std::time::{Duration, SystemTime};

use data_encoding::HEXLOWER;
use sandpod_kube::k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{AuditEvent, AuditSink, Decision, Phase};
use crate::metrics::{BUCKETS_US, Metrics};
use crate::{Error, Result};

/// The time limit of a request.
const LIMIT: Duration = Duration::from_secs(10);
/// The shortest time between two exports of metrics, which are sent with events.
const METRICS_PERIOD: Duration = Duration::from_secs(10);
/// An upper bound for the length of a status line.
const MAX_STATUS_BYTES: u64 = 4096;

/// Sends events to an OpenTelemetry collector. Each event is a log record, and each outcome is also a span. The
/// process's metrics are sent with them.
#[derive(Debug)]
pub struct Otlp {
    /// Host and port.
    address: String,
    /// The path before `/v1/logs`.
    path: String,
    began: u64,
    metrics_sent: Option<SystemTime>,
}

impl Otlp {
    /// Creates a sink for the collector at a URL such as `http://localhost:4318`.
    ///
    /// ```
    /// assert!(sandpod::Otlp::new("http://localhost:4318").is_ok());
    /// assert!(sandpod::Otlp::new("https://example.com").is_err());
    /// ```
    pub fn new(endpoint: &str) -> Result<Self> {
        let rest = endpoint.strip_prefix("http://").ok_or_else(|| unusable(endpoint))?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if host.is_empty() || host.contains('@') || !is_plain(rest) {
            return Err(unusable(endpoint));
        }
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let address = if has_port { host.to_owned() } else { format!("{host}:4318") };
        let path = if path.is_empty() { String::new() } else { format!("/{}", path.trim_end_matches('/')) };
        Ok(Self { address, path, began: nanos(SystemTime::now()), metrics_sent: None })
    }

    fn send(&mut self, events: &[AuditEvent]) -> io::Result<()> {
        self.post("/v1/logs", &logs(events))?;
        let outcomes: Vec<_> = events.iter().filter(|event| event.phase == Phase::Outcome).collect();
        if !outcomes.is_empty() {
            self.post("/v1/traces", &traces(&outcomes))?;
        }
        let now = SystemTime::now();
        let is_due = self.metrics_sent.is_none_or(|sent| sent + METRICS_PERIOD <= now);
        if is_due && !outcomes.is_empty() {
            self.post("/v1/metrics", &metrics(&Metrics::now(), self.began, nanos(now)))?;
            self.metrics_sent = Some(now);
        }
        Ok(())
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut failure = io::Error::other("its name does not resolve");
        for address in self.address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, LIMIT) {
                Ok(stream) => return Ok(stream),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Sends one request on a new connection. The collector is nearby, so keep-alive is not needed.
    fn post(&self, what: &str, body: &Value) -> io::Result<()> {
        let mut stream = self.connect()?;
        stream.set_read_timeout(Some(LIMIT))?;
        stream.set_write_timeout(Some(LIMIT))?;
        let body = body.to_string();
        let head = format!(
            "POST {}{what} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            self.path,
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(body.as_bytes())?;
        let mut status = String::new();
        BufReader::new(stream.take(MAX_STATUS_BYTES)).read_line(&mut status)?;
        match status.split(' ').nth(1) {
            Some(code) if code.starts_with('2') => Ok(()),
            _ => Err(io::Error::other(format!("it answered {what} with {:?}", status.trim_end()))),
        }
    }
}

impl AuditSink for Otlp {
    fn record(&mut self, events: &[AuditEvent]) -> std::result::Result<(), String> {
        self.send(events)
            .map_err(|error| format!("the collector at {} does not take it: {error}", self.address))
    }
}

fn unusable(endpoint: &str) -> Error {
    Error::invalid(
        format!("'{endpoint}' is not a usable collector: it must be http://host:port without a password."),
        "Run a collector beside this process, and let it send on to where TLS and credentials are needed.",
    )
}

fn resource() -> Value {
    json!({ "attributes": [attribute("service.name", &json!({ "stringValue": "sandpod" }))] })
}

fn scope() -> Value {
    json!({ "name": "sandpod", "version": env!("CARGO_PKG_VERSION") })
}

fn attribute(key: &str, value: &Value) -> Value {
    json!({ "key": key, "value": value })
}

fn text(value: impl Into<String>) -> Value {
    json!({ "stringValue": value.into() })
}

fn number(value: impl Into<i128>) -> Value {
    json!({ "intValue": value.into().to_string() })
}

fn logs(events: &[AuditEvent]) -> Value {
    let records: Vec<_> = events.iter().map(log).collect();
    json!({ "resourceLogs": [{
        "resource": resource(), "scopeLogs": [{ "scope": scope(), "logRecords": records }],
    }] })
}

fn log(event: &AuditEvent) -> Value {
    let (severity, name) = if event.decision == Decision::Denied { (13, "WARN") } else { (9, "INFO") };
    let mut attributes = attributes(event);
    let phase = if event.phase == Phase::Intent { "intent" } else { "outcome" };
    attributes.push(attribute("sandpod.phase", &text(phase)));
    json!({
        "timeUnixNano": event_nanos(event).to_string(),
        "severityNumber": severity,
        "severityText": name,
        "body": text(event.operation.as_str()),
        "attributes": attributes,
        "traceId": trace_id(event),
        "spanId": event.id,
    })
}

fn traces(outcomes: &[&AuditEvent]) -> Value {
    let spans: Vec<_> = outcomes.iter().map(|event| span(event)).collect();
    json!({ "resourceSpans": [{ "resource": resource(), "scopeSpans": [{ "scope": scope(), "spans": spans }] }] })
}

fn span(event: &AuditEvent) -> Value {
    let end = event_nanos(event);
    let start = end.saturating_sub(event.duration_us.unwrap_or_default().saturating_mul(1000));
    let failed = event.error.is_some() || event.decision == Decision::Denied;
    json!({
        "traceId": trace_id(event),
        "spanId": event.id,
        "name": format!("sandpod.{}", event.operation),
        "kind": 3,
        "startTimeUnixNano": start.to_string(),
        "endTimeUnixNano": end.to_string(),
        "attributes": attributes(event),
        "status": { "code": if failed { 2 } else { 1 } },
    })
}

fn attributes(event: &AuditEvent) -> Vec<Value> {
    let targets: Vec<_> = event.targets.iter().map(text).collect();
    let decision = if event.decision == Decision::Denied { "denied" } else { "allowed" };
    let always = [
        attribute("sandpod.operation", &text(event.operation.as_str())),
        attribute("sandpod.sandbox", &text(&event.sandbox)),
        attribute("sandpod.decision", &text(decision)),
        attribute("sandpod.targets", &json!({ "arrayValue": { "values": targets } })),
    ];
    let sometimes = [
        event.reason.as_ref().map(|reason| attribute("sandpod.reason", &text(reason))),
        event.error.as_ref().map(|error| attribute("error.type", &text(error))),
        event.size.map(|size| attribute("sandpod.size", &number(size))),
        event.exit_code.map(|code| attribute("process.exit.code", &number(code))),
        (event.lost_before > 0).then(|| attribute("sandpod.lost_before", &number(event.lost_before))),
    ];
    always.into_iter().chain(sometimes.into_iter().flatten()).collect()
}

fn metrics(now: &Metrics, began: u64, time: u64) -> Value {
    let common = |attributes: Vec<Value>| {
        json!({
            "attributes": attributes, "startTimeUnixNano": began.to_string(), "timeUnixNano": time.to_string(),
        })
    };
    let point = |attributes: Vec<Value>, value: u64| {
        let mut point = common(attributes);
        point["asInt"] = value.to_string().into();
        point
    };
    let sum = |name: &str, points: Vec<Value>| json!({ "name": name, "sum": { "dataPoints": points, "aggregationTemporality": 2, "isMonotonic": true } });
    let mut ended = Vec::new();
    let mut took = Vec::new();
    for (operation, metrics) in &now.operations {
        let named = |outcome: &str| {
            vec![attribute("operation", &text(*operation)), attribute("outcome", &text(outcome))]
        };
        let done = metrics.count.saturating_sub(metrics.failed + metrics.denied);
        ended.extend([
            point(named("done"), done),
            point(named("failed"), metrics.failed),
            point(named("denied"), metrics.denied),
        ]);
        let mut histogram = common(vec![attribute("operation", &text(*operation))]);
        histogram["count"] = metrics.count.to_string().into();
        histogram["sum"] = metrics.total.as_secs_f64().into();
        histogram["bucketCounts"] = metrics.buckets.map(|count| count.to_string()).to_vec().into();
        histogram["explicitBounds"] =
            BUCKETS_US.map(|most| Duration::from_micros(most).as_secs_f64()).to_vec().into();
        took.push(histogram);
    }
    let all = [
        sum("sandpod.operations", ended),
        json!({
            "name": "sandpod.operation.duration", "unit": "s",
            "histogram": { "dataPoints": took, "aggregationTemporality": 2 },
        }),
        json!({ "name": "sandpod.streams.open", "gauge": { "dataPoints": [point(Vec::new(), now.streams.open)] } }),
        sum("sandpod.streams.opened", vec![point(Vec::new(), now.streams.opened)]),
        sum("sandpod.reconnects", vec![point(Vec::new(), now.streams.reconnects)]),
    ];
    json!({ "resourceMetrics": [{
        "resource": resource(), "scopeMetrics": [{ "scope": scope(), "metrics": all }],
    }] })
}

/// Derives a trace id from the operation's id.
fn trace_id(event: &AuditEvent) -> String {
    HEXLOWER.encode(&Sha256::digest(&event.id)[..16])
}

fn event_nanos(event: &AuditEvent) -> u64 {
    let time = Timestamp::from_str(&event.time).ok();
    time.and_then(|time| u64::try_from(time.as_nanosecond()).ok()).unwrap_or_default()
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::guard::Operation;

    /// Starts a collector that returns `answer` to every request. Returns its endpoint, and the paths and bodies that
    /// it receives.
    fn collector(answer: &'static str) -> (String, mpsc::Receiver<(String, Value)>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}/otlp/", listener.local_addr().unwrap());
        let (sender, received) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let (mut head, mut length) = (Vec::new(), 0);
                loop {
                    let mut line = String::new();
                    stream.read_line(&mut line).unwrap();
                    if line == "\r\n" {
                        break;
                    }
                    if let Some(value) = line.strip_prefix("Content-Length: ") {
                        length = value.trim().parse().unwrap();
                    }
                    head.push(line);
                }
                let mut body = vec![0; length];
                stream.read_exact(&mut body).unwrap();
                stream
                    .get_mut()
                    .write_all(format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n").as_bytes())
                    .unwrap();
                let path = head[0].split(' ').nth(1).unwrap().to_owned();
                if sender.send((path, serde_json::from_slice(&body).unwrap())).is_err() {
                    return;
                }
            }
        });
        (endpoint, received)
    }

    fn outcome() -> AuditEvent {
        let intent = AuditEvent::intent(Operation::Execute, "sp-1", vec!["true".to_owned()]);
        AuditEvent { exit_code: Some(3), ..intent.outcome(Duration::from_millis(250)) }
    }

    #[test]
    fn collector_receives_logs_spans_and_metrics() {
        let (endpoint, received) = collector("200 OK");
        crate::metrics::COUNTERS.count(
            Operation::Execute,
            crate::metrics::End::Done,
            Duration::from_millis(250),
        );
        let event = outcome();
        Otlp::new(&endpoint).unwrap().record(std::slice::from_ref(&event)).unwrap();

        let (path, logs) = received.recv().unwrap();
        let record = &logs["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0];
        assert_eq!((path.as_str(), &record["body"]["stringValue"]), ("/otlp/v1/logs", &json!("execute")));
        assert_eq!(record["spanId"], event.id);

        let (path, traces) = received.recv().unwrap();
        let span = &traces["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!((path.as_str(), &span["name"]), ("/otlp/v1/traces", &json!("sandpod.execute")));
        let time = |name: &str| span[name].as_str().unwrap().parse::<u64>().unwrap();
        assert_eq!(time("endTimeUnixNano") - time("startTimeUnixNano"), 250_000_000);
        assert_eq!((span["traceId"].as_str().unwrap().len(), &span["traceId"]), (32, &record["traceId"]));

        let (path, metrics) = received.recv().unwrap();
        let all = metrics["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().unwrap();
        let names: Vec<_> = all.iter().map(|metric| metric["name"].as_str().unwrap()).collect();
        assert_eq!(path, "/otlp/v1/metrics");
        assert!(
            names.contains(&"sandpod.operations") && names.contains(&"sandpod.streams.open"),
            "{names:?}"
        );
    }

    #[test]
    fn refusing_or_missing_collector_is_an_error() {
        let (endpoint, _received) = collector("503 Service Unavailable");
        let error = Otlp::new(&endpoint).unwrap().record(&[outcome()]).unwrap_err();
        assert!(error.contains("503"), "{error}");
        let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(Otlp::new(&format!("http://{gone}")).unwrap().record(&[outcome()]).is_err());
    }

    #[test]
    fn invalid_endpoints_are_rejected() {
        for endpoint in
            ["https://x", "localhost:4318", "http://", "http://user:pass@x", "http://a b", "http://a\r\nX: y"]
        {
            assert!(Otlp::new(endpoint).is_err(), "{endpoint}");
        }
        assert_eq!(Otlp::new("http://collector").unwrap().address, "collector:4318");
    }
}
